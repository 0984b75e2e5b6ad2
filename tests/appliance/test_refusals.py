"""What is refused, with which status, and whether the sentence names the field."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from dualpace.appliance import aside
from dualpace.engine.ring import SamplingParams

from .bundles import CONTEXT, VOCAB
from .conftest import Frontend, ServeToy
from .fake_ring import FakeRing

COMPLETION = {"model": "toy", "prompt": "x"}
CHAT = {"model": "toy", "messages": [{"role": "user", "content": "x"}]}
SURROGATE = "\ud83d"

COMPLETION_FIELDS = [
    ("prompt", ""),
    ("prompt", []),
    ("prompt", [[]]),
    ("prompt", ["a", ""]),
    ("prompt", None),
    ("prompt", 5),
    ("prompt", [1, "a"]),
    ("prompt", [True]),
    ("prompt", [-1]),
    ("prompt", [VOCAB]),
    ("prompt", f"a{SURROGATE}"),
    ("prompt", ["a", f"a{SURROGATE}"]),
    ("model", None),
    ("model", f"toy{SURROGATE}"),
    ("max_tokens", -1),
    ("max_tokens", "16"),
    ("max_tokens", 1.5),
    ("max_tokens", True),
    ("min_tokens", 17),
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", "1"),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_k", -2),
    ("min_p", 1.5),
    ("seed", 2**63),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", ["a"] * 5),
    ("stop", SURROGATE),
    ("stop_token_ids", [VOCAB]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", list(range(33))),
    ("stop_token_ids", list(range(2, 34))),
    ("n", 0),
    ("n", 9),
    ("priority", -129),
    ("priority", 128),
    ("stream", "yes"),
    ("stream_options", {"include_usage": True}),
    ("user", 5),
    ("best_of", 2),
    ("suffix", "z"),
    ("logprobs", 21),
    ("logprobs", -1),
    ("logprobs", True),
    ("logit_bias", {"five": 1}),
    ("logit_bias", {"05": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"5": 100.5}),
    ("logit_bias", {"5": None}),
    ("logit_bias", {str(VOCAB): 1}),
    ("logit_bias", {"9999999999": 1}),
    ("logit_bias", {str(token): 1 for token in range(301)}),
    ("logit_bias", [5, 1]),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -2.5),
    ("repetition_penalty", 0),
    ("repetition_penalty", 101),
    ("messages", []),
    ("unheard_of", 1),
]  # fmt: skip
CHAT_FIELDS = [
    ("messages", []),
    ("messages", "hello"),
    ("messages[0]", [5]),
    ("messages[0].content", [{"role": "user"}]),
    ("messages[0].content", [{"role": "user", "content": None}]),
    ("messages[0].content", [{"role": "user", "content": f"a{SURROGATE}"}]),
    ("messages[0].content", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    ("messages[0].role", [{"role": "tool", "content": "x"}]),
    ("messages[0].tool_calls", [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]),
    ("messages[0].weight", [{"role": "user", "content": "x", "weight": 1}]),
    ("max_tokens", 0),
    ("max_completion_tokens", 0),
    ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ("tool_choice", "required"),
    ("functions", [{"name": "f"}]),
    ("response_format", {"type": "json_object"}),
    ("logprobs", 2),
    ("top_logprobs", 21),
    ("top_logprobs", 2),
    ("modalities", ["text", "audio"]),
    ("audio", {"voice": "x"}),
    ("reasoning_effort", "low"),
    ("store", True),
    ("echo", True),
]  # fmt: skip


def post(toy: Frontend, path: str, body: object):
    # json.dumps spells a lone surrogate as an escape, as a client would.
    return toy.http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})


@pytest.mark.parametrize(("field", "value"), COMPLETION_FIELDS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_field_is_refused_by_name(toy: Frontend, field: str, value: object, stream: bool):
    toy.ring.submitted.clear()
    response = post(toy, "/v1/completions", {**COMPLETION, "stream": stream, field: value})
    if field == "stream_options" and stream:
        assert response.status_code == 200
        return
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert error["param"] == field
    assert field in error["message"]
    assert error["type"] == "invalid_request_error"
    assert toy.ring.submitted == []


@pytest.mark.parametrize(("path", "value"), CHAT_FIELDS)
def test_a_chat_field_is_refused_by_name(toy: Frontend, path: str, value: object):
    response = post(toy, "/v1/chat/completions", {**CHAT, path.partition("[")[0]: value})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, path), error
    assert path in error["message"]


def test_the_sentences_say_what_is_wrong(toy: Frontend):
    def sentence(path: str, **fields: object) -> str:
        base = COMPLETION if path == "/v1/completions" else CHAT
        return post(toy, path, base | fields).json()["error"]["message"]

    assert sentence("/v1/completions", prompt=5) == (
        "'prompt' is not valid. "
        "It takes: A text, a list of texts, a list of token ids, or a list of lists of token ids."
    )
    assert sentence("/v1/completions", temperature=3) == (
        "'temperature' is not valid: input should be less than or equal to 2."
    )
    assert sentence("/v1/completions", foo=3) == "Unrecognized request argument supplied: 'foo'."
    assert sentence("/v1/completions", prompt=[VOCAB]) == (
        f"Token id {VOCAB} in 'prompt' is outside the vocabulary of {toy.deployment.vocab}."
    )
    assert sentence("/v1/chat/completions", tools=[{}]) == (
        "'tools' is not supported: this server has no tool calls. Leave it out."
    )


def test_no_sentence_repeats_the_prompt(toy: Frontend):
    for fields in ({"prompt": [1, "secret"]}, {"prompt": f"secret{SURROGATE}"}, {"prompt": ["secret", ""]}):
        assert "secret" not in post(toy, "/v1/completions", COMPLETION | fields).text


def test_null_means_omitted_and_values_that_ask_for_nothing_are_taken(toy: Frontend):
    optional = toy.http.get("/openapi.json").json()["components"]["schemas"]
    for path, name, base in (
        ("/v1/completions", "CompletionRequest", COMPLETION),
        ("/v1/chat/completions", "ChatRequest", CHAT),
    ):
        nulls = dict.fromkeys(optional[name]["properties"], None)
        assert post(toy, path, {**nulls, **base, "max_tokens": 1}).status_code == 200
    neutral = {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "n": 1, "top_k": -1}
    assert post(toy, "/v1/completions", {**COMPLETION, **neutral, "best_of": 1, "suffix": ""}).status_code == 200
    neutral |= {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "logprobs": False}
    assert post(toy, "/v1/chat/completions", {**CHAT, **neutral}).status_code == 200


def test_a_field_that_is_not_served_is_told_before_values_out_of_range(toy: Frontend):
    body = CHAT | {"temperature": 3, "max_tokens": 0, "tools": [{}]}
    assert post(toy, "/v1/chat/completions", body).json()["error"]["param"] == "tools"


def test_both_names_of_max_tokens_at_once_are_refused(toy: Frontend):
    response = post(toy, "/v1/chat/completions", CHAT | {"max_tokens": 1, "max_completion_tokens": 1})
    assert response.status_code == 400


def test_unknown_paths_methods_and_models_answer_with_the_error_object(toy: Frontend):
    for response, status in (
        (toy.http.get("/v1/nothing"), 404),
        (toy.http.post("/v1/completions/", json=COMPLETION), 404),
        (toy.http.get("/nothing/%ff%0d%0a"), 404),
        (toy.http.post("/v1/nothing"), 404),
        (toy.http.get("/v1/completions"), 405),
        (toy.http.post("/v1/models"), 405),
        (toy.http.delete("/v1/models"), 405),
        (toy.http.request("PUT", "/metrics"), 405),
        (toy.http.get("/v1/models/other"), 404),
        (post(toy, "/v1/completions", COMPLETION | {"model": "other"}), 404),
    ):
        assert response.status_code == status
        assert response.json()["error"]["message"]
    assert response.json()["error"]["code"] == "model_not_found"
    refused = toy.http.get("/v1/completions")
    assert refused.headers["allow"] == "POST"
    assert refused.json()["error"]["message"] == "GET is not served at /v1/completions; POST is."


@pytest.mark.parametrize(("prompt", "fits"), [(CONTEXT - 9, True), (CONTEXT - 8, True), (CONTEXT - 7, False)])
def test_prompt_and_completion_fill_the_context_and_no_more(toy: Frontend, prompt: int, fits: bool):
    response = post(toy, "/v1/completions", COMPLETION | {"prompt": [5] * prompt, "max_tokens": 8})
    if fits:
        assert response.json()["usage"]["completion_tokens"] == 8
        return
    assert response.json()["error"] == {
        "message": f"This model's maximum context length is {CONTEXT} tokens. However, you requested {prompt + 8} "
        f"tokens ({prompt} in the prompt, 8 in the completion). Please reduce the length of the prompt or completion.",
        "type": "invalid_request_error",
        "param": "prompt",
        "code": "context_length_exceeded",
    }


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_prompt_that_leaves_no_room_never_reaches_the_engine(toy: Frontend, path: str):
    toy.ring.submitted.clear()
    text = "x " * 5 * CONTEXT
    body = COMPLETION | {"prompt": text} if path == "/v1/completions" else CHAT | {"messages": [
        {"role": "user", "content": text}]}  # fmt: skip
    response = post(toy, path, body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert toy.ring.submitted == []


@pytest.fixture
def no_tokenising(toy: Frontend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets nothing be tokenised."""
    monkeypatch.setattr(toy.deployment.tokenizer, "encode", None)


@pytest.mark.parametrize("prompts", [[[5]] * 33, [[VOCAB]] * 33, ["x"] * 33])
@pytest.mark.usefixtures("no_tokenising")
def test_more_prompts_than_the_server_can_hold_are_refused_at_once(toy: Frontend, prompts: list[object]):
    response = post(toy, "/v1/completions", COMPLETION | {"prompt": prompts})
    assert response.status_code == 400
    assert "32 requests" in response.json()["error"]["message"]


def test_too_many_ids_are_refused_before_any_of_them(toy: Frontend):
    response = post(toy, "/v1/completions", COMPLETION | {"prompt": [VOCAB] * CONTEXT})
    assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.usefixtures("no_tokenising")
def test_a_text_that_no_tokenising_could_make_fit_is_not_tokenised(toy: Frontend, path: str):
    text = "x" * CONTEXT * toy.deployment.tokenizer.most_bytes
    body = COMPLETION | {"prompt": text} if path == "/v1/completions" else CHAT | {"messages": [
        {"role": "user", "content": text}]}  # fmt: skip
    error = post(toy, path, body).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "tokens. However, you requested at least 2" in error["message"]


def test_few_prompts_are_tokenised_at_once(serve: ServeToy, monkeypatch: pytest.MonkeyPatch):
    toy = serve()
    lock, running, most = threading.Lock(), 0, 0

    def encode(text: str) -> list[int]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return [5]

    monkeypatch.setattr(toy.deployment.tokenizer, "encode", encode)
    monkeypatch.setattr(aside, "SMALL_TEXT", 0)
    with ThreadPoolExecutor(16) as pool:
        load = [pool.submit(post, toy, "/v1/completions", COMPLETION) for _ in range(16)]
    assert {future.result().status_code for future in load} == {200}
    assert 1 < most <= 4


def test_what_only_the_engine_knows_it_cannot_serve_is_a_bad_request(serve: ServeToy):
    class Narrow(FakeRing):
        def submit(self, tag: int, prompt: list[int], params: SamplingParams) -> bool:
            if len(prompt) > 2:
                raise ValueError("prompt_tokens is 3, the ring holds 2")
            return super().submit(tag, prompt, params)

    toy = serve(Narrow())
    with pytest.raises(openai.BadRequestError, match="the ring holds 2"):
        toy.openai.completions.create(model="toy", prompt=[[5, 5], [5, 5, 5]], max_tokens=200)
    assert len(toy.ring.aborted) == 1
