import openai
import pytest

from .conftest import Frontend, ServeToy

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
RENDERED = "<system>be brief\n<user>hello\n<assistant>"


def test_a_chat_with_the_openai_client(toy: Frontend):
    reply = toy.openai.chat.completions.create(
        model="toy", messages=MESSAGES, max_completion_tokens=len(toy.encode(RENDERED))
    )
    assert reply.choices[0].message.content == RENDERED
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason == "length"
    assert reply.object == "chat.completion"
    assert reply.usage.prompt_tokens == len(toy.encode(RENDERED))


def test_a_streamed_chat_with_the_openai_client(toy: Frontend):
    chunks = list(
        toy.openai.chat.completions.create(
            model="toy",
            messages=MESSAGES,
            max_tokens=len(toy.encode(RENDERED)),
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    *pieces, last = chunks
    assert pieces[0].choices[0].delta.role == "assistant"
    assert all(piece.choices[0].delta.role is None for piece in pieces[1:])
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == RENDERED
    assert pieces[-1].choices[0].finish_reason == "length"
    assert last.usage.total_tokens == 2 * len(toy.encode(RENDERED))


def test_choices_of_a_stream_keep_apart(toy: Frontend):
    texts = {}
    for chunk in toy.openai.chat.completions.create(model="toy", messages=MESSAGES, max_tokens=9, n=3, stream=True):
        choice = chunk.choices[0]
        texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    assert len(texts) == 3
    assert len(set(texts.values())) == 1
    assert RENDERED.startswith(texts[0])


def test_a_chat_may_use_the_rest_of_the_context(toy: Frontend):
    toy.ring.submitted.clear()
    toy.openai.chat.completions.create(model="toy", messages=MESSAGES)
    prompt, params = toy.ring.submitted[0]
    assert len(prompt) + params.max_tokens == toy.deployment.max_context


def test_text_parts_are_joined_and_developer_is_system(toy: Frontend):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    reply = toy.openai.chat.completions.create(model="toy", messages=messages, max_tokens=len(toy.encode(RENDERED)))
    assert reply.choices[0].message.content == RENDERED


def test_a_reply_can_be_sent_back_as_the_client_dumps_it(toy: Frontend):
    reply = toy.openai.chat.completions.create(model="toy", messages=MESSAGES, max_tokens=4)
    turn = reply.choices[0].message
    again = toy.openai.chat.completions.create(model="toy", messages=[*MESSAGES, turn, MESSAGES[1]], max_tokens=4)
    assert again.choices[0].message.content
    dumped = toy.openai.chat.completions.create(model="toy", messages=[*MESSAGES, turn.model_dump()], max_tokens=4)
    assert dumped.choices[0].message.content


@pytest.mark.parametrize(("start", "count"), [("{{ bos_token }}", 1), ("", 0)])
def test_a_chat_has_the_bos_that_its_template_writes_and_no_other(serve: ServeToy, start: str, count: int):
    toy = serve(template=start + "{{ messages[0].content }}", add_bos=True)
    toy.openai.chat.completions.create(model="toy", messages=MESSAGES, max_tokens=1)
    prompt, _ = toy.ring.submitted[0]
    bos = toy.deployment.generation.bos_token
    assert [token for token in prompt[:2] if token == bos] == [bos] * count


def test_a_model_without_a_template_says_what_to_use_instead(serve: ServeToy):
    toy = serve(template=None)
    with pytest.raises(openai.BadRequestError, match="no chat template: use /v1/completions"):
        toy.openai.chat.completions.create(model="toy", messages=MESSAGES)


def test_what_the_template_refuses_is_the_clients_to_read(serve: ServeToy):
    toy = serve(template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(openai.BadRequestError, match="roles must alternate") as refused:
        toy.openai.chat.completions.create(model="toy", messages=MESSAGES)
    assert refused.value.param == "messages"
