"""Chat templates render as transformers renders them."""

import pytest
from transformers import PreTrainedTokenizerFast

from dualpace.model.chat import ChatError, ChatTemplate
from dualpace.model.tokenizer import Tokenizer
from dualpace.plan.manifest import CHAT_TEMPLATE, Generation

from .conftest import byte_level_tokenizer, write_bundle

HEADERS = """
{{- bos_token }}
{%- set date = date_string or "26 Jul 2024" %}
{%- if messages[0].role == "system" %}
    {%- set system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start|>system<|end|>\\n\\nToday: " + date + "\\n" + system + "<|eot|>" }}
{%- if tools is not none %}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {{- "<|start|>" + message["role"] + "<|end|>\\n\\n" + message["content"] | trim + "<|eot|>" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|start|>assistant<|end|>\\n\\n" }}
{%- endif %}
"""
IM_START = """
{%- set ns = namespace(last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == "user" %}
        {%- set ns.last = messages | length - loop.index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{% for message in messages %}
    {% if loop.first and message.role != "system" %}
<|im_start|>system
You are helpful.<|im_end|>
    {% endif %}
<|im_start|>{{ message.role }}{% if loop.index0 == ns.last %} (last){% endif %}

{% generation %}{{ message.content }}{% endgeneration %}<|im_end|>
{% endfor %}
{% if tools %}{{ tools | tojson }} {{ {"b": 1, "a": "<é>"} | tojson }}{% endif %}
{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}
"""
TURNS = """{{ bos_token }}
{%- for message in messages -%}
    {%- if (message["role"] == "user") != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Roles must alternate user/assistant") }}
    {%- endif -%}
    {%- set role = "model" if message["role"] == "assistant" else message["role"] -%}
    {{ "<start_of_turn>" + role + "\\n" + message["content"] | trim }}
    {{- eos_token if message["role"] == "assistant" else "" }}{{ "<end_of_turn>\\n" }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ "<start_of_turn>model\\n" }}
{%- endif -%}
"""
SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>"}
TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "1 < 2 & 'ü'", "parameters": {"z": 1, "a": 2}}}
]
USER = {"role": "user", "content": "  What is <b> & 'c'?\n"}
ASSISTANT = {"role": "assistant", "content": "A letter. 🦙"}


@pytest.mark.parametrize("source", [HEADERS, IM_START, TURNS])
@pytest.mark.parametrize("messages", [[USER], [USER, ASSISTANT, USER]])
@pytest.mark.parametrize(
    "options",
    [{}, {"tools": TOOLS}, {"add_generation_prompt": False}, {"date_string": "today", "enable_thinking": False}],
)
def test_a_template_renders_as_in_transformers(source, messages, options):
    reference = PreTrainedTokenizerFast(tokenizer_object=byte_level_tokenizer(), chat_template=source, **SPECIAL)
    options = {"add_generation_prompt": True, **options}
    expected = reference.apply_chat_template(messages, tokenize=False, **options)
    assert ChatTemplate(source, SPECIAL).render(messages, **options) == expected


def test_what_the_template_itself_refuses_reaches_the_client():
    with pytest.raises(ChatError, match="Roles must alternate user/assistant"):
        ChatTemplate(TURNS, SPECIAL).render([ASSISTANT])


@pytest.mark.parametrize("messages", [[{"role": "user"}], [{"role": "user", "content": None}], [{"content": [1]}]])
def test_messages_that_a_template_cannot_use_are_the_clients_error(messages):
    with pytest.raises(ChatError, match="refuses these messages"):
        ChatTemplate("{{ 'User: ' + messages[0].content }}", {}).render(messages)


@pytest.mark.parametrize("source", ["{{ messages.append(1) }}", "{{ messages.__class__.__mro__ }}"])
def test_a_template_can_neither_change_its_input_nor_reach_out_of_the_sandbox(source):
    with pytest.raises(ChatError):
        ChatTemplate(source, {}).render([USER])


def test_a_model_without_a_template_says_so():
    with pytest.raises(ChatError, match="has no chat template: use /v1/completions"):
        ChatTemplate(None, {}).render([USER])


def test_a_template_that_does_not_parse_is_found_when_it_is_read():
    with pytest.raises(ChatError, match="not valid"):
        ChatTemplate("{% for %}", {})


def test_a_bundles_template_gets_its_special_tokens_and_one_bos(tmp_path):
    bundle = write_bundle(tmp_path, byte_level_tokenizer(), Generation(bos_token=0, add_bos=True, eos_tokens=(1, 7)))
    (bundle / CHAT_TEMPLATE).write_text(TURNS)
    tokenizer = Tokenizer(bundle)
    text = ChatTemplate.load(bundle, tokenizer).render([USER, ASSISTANT, USER])
    assert text.startswith("<bos>")
    assert "🦙<eos>" in text
    assert tokenizer.encode(text).count(0) == 1
