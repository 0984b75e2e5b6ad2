"""What has gone wrong elsewhere with requests, streams and sampling, tried on a running appliance."""

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest

from tests.appliance.bundles import CONTEXT, VOCAB, tokenizer
from tests.e2e.appliance import Served
from tests.e2e.test_metrics import scrape

JSON = {"Content-Type": "application/json"}
IDS = tokenizer().get_vocab_size()
PROMPT = "hello world"


@pytest.fixture(scope="module")
def http(tiny: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tiny.url, timeout=30) as client:
        yield client


def complete(http: httpx.Client, **fields: Any) -> httpx.Response:
    """With `json.dumps`, which spells a lone surrogate as an escape, as a client would."""
    body = json.dumps({"model": "toy", "prompt": PROMPT, "ignore_eos": True} | fields)
    return http.post("/v1/completions", content=body, headers=JSON)


def text_of(http: httpx.Client, **fields: Any) -> str:
    response = complete(http, **fields)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def streamed(http: httpx.Client, **fields: Any) -> tuple[str, str]:
    """The text of a stream, and the reason why it finished."""
    *events, done, _ = complete(http, stream=True, **fields).text.split("\n\n")
    assert done == "data: [DONE]"
    choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    return "".join(choice["text"] for choice in choices), choices[-1]["finish_reason"]


@pytest.mark.parametrize("body", [b"", b"{", b'{"model": "toy", "prompt": "x",}', b"[]", b"\xff"])
def test_a_body_that_is_no_json_object_is_400(http: httpx.Client, body: bytes) -> None:
    response = http.post("/v1/completions", content=body, headers=JSON)
    assert response.status_code == 400
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_a_body_of_no_type_is_415(http: httpx.Client) -> None:
    assert http.post("/v1/completions", content=b'{"model": "toy", "prompt": "x"}').status_code == 415


@pytest.mark.parametrize(("prompt", "status"), [(CONTEXT - 2, 200), (CONTEXT - 1, 200), (CONTEXT, 400)])
def test_the_limit_of_admission_is_the_engines(http: httpx.Client, prompt: int, status: int) -> None:
    assert http.get("/v1/models").json()["data"][0]["max_model_len"] == CONTEXT
    response = complete(http, prompt=[5] * prompt, max_tokens=1)
    assert response.status_code == status
    if status == 400:
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert f"maximum context length is {CONTEXT} tokens" in response.json()["error"]["message"]


def test_a_prompt_far_above_the_limit_never_enters_a_ring(tiny: Served, http: httpx.Client) -> None:
    key = "dualpace_accepted_requests_total", frozenset[tuple[str, str]]()
    before = scrape(tiny)[key]
    for prompt in ([5] * 500_000, "x" * 1_000_000):
        assert complete(http, prompt=prompt).json()["error"]["code"] == "context_length_exceeded"
    assert scrape(tiny)[key] == before


@pytest.mark.parametrize("prompt", ["", [], [[]], ["a", ""], None])
def test_an_empty_prompt_is_400(http: httpx.Client, prompt: object) -> None:
    assert complete(http, prompt=prompt).json()["error"]["param"] == "prompt"


def test_null_means_omitted(http: httpx.Client) -> None:
    names = http.get("/openapi.json").json()["components"]["schemas"]["CompletionRequest"]["properties"]
    nulls = dict.fromkeys(set(names) - {"model", "prompt", "max_tokens"})
    assert complete(http, **nulls, max_tokens=2).status_code == 200


def test_a_prompt_is_scored_without_generating(http: httpx.Client) -> None:
    choice = complete(http, echo=True, logprobs=1, max_tokens=0).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (PROMPT, "length")
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert all(logprob < 0 for logprob in choice["logprobs"]["token_logprobs"][1:])
    assert "".join(choice["logprobs"]["tokens"]) == PROMPT


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{"prompt": "a\ud83d"}, {"stop": "\ude00"}, {"user": "\ud800"}])
def test_a_lone_surrogate_is_400_before_any_header(http: httpx.Client, stream: bool, fields: dict[str, str]) -> None:
    assert complete(http, stream=stream, **fields).status_code == 400


@pytest.mark.parametrize("field", ["guided_json", "use_beam_search", "max_token", "Prompt"])
def test_a_field_that_nobody_knows_is_refused(http: httpx.Client, field: str) -> None:
    assert complete(http, **{field: 1}).json()["error"]["param"] == field


def test_a_stop_string_over_two_tokens_ends_the_text_before_it(http: httpx.Client) -> None:
    fields = {"max_tokens": 60, "temperature": 1, "seed": 3}
    logprobs = complete(http, **fields, logprobs=0).json()["choices"][0]["logprobs"]
    whole = text_of(http, **fields)
    around = [whole[offset - 1 : offset + 1] for offset in logprobs["text_offset"][6:]]
    stop = next(text for text in around if len(text) == 2 and "\ufffd" not in text)
    expected = whole[: whole.index(stop)]
    assert text_of(http, **fields, stop=stop) == expected
    assert streamed(http, **fields, stop=stop) == (expected, "stop")


def test_text_held_back_for_a_stop_string_comes_at_the_end(http: httpx.Client) -> None:
    fields = {"max_tokens": 8, "temperature": 1, "seed": 5}
    whole = text_of(http, **fields)
    assert streamed(http, **fields, stop=whole[-1] + "\x00\x01") == (whole, "length")


@pytest.mark.parametrize("seed", range(12))
def test_streamed_text_equals_unstreamed_text(http: httpx.Client, seed: int) -> None:
    # Of random bytes most are no characters, and many are half of one.
    fields = {"max_tokens": 120, "temperature": 2, "top_k": 0, "seed": seed}
    assert streamed(http, **fields) == (text_of(http, **fields), "length")


@pytest.mark.parametrize("token", [-1, IDS, VOCAB - 1, VOCAB, 2**31])
def test_ids_outside_the_vocabulary_or_in_its_padding_are_400(http: httpx.Client, token: int) -> None:
    assert complete(http, stop_token_ids=[token]).json()["error"]["param"] == "stop_token_ids"
    assert complete(http, logit_bias={str(token): 1}).json()["error"]["param"].startswith("logit_bias")
    assert complete(http, prompt=[5, token]).json()["error"]["param"] == "prompt"


def test_a_bias_stays_with_its_own_row(http: httpx.Client) -> None:
    alone = text_of(http, temperature=0, max_tokens=20)
    texts = complete(http, prompt=[PROMPT] * 3, temperature=0, max_tokens=20).json()["choices"]
    assert {choice["text"] for choice in texts} == {alone}
    token = tokenizer().encode("z").ids[0]
    assert text_of(http, temperature=0, max_tokens=6, logit_bias={str(token): 100}) == "zzzzzz"


def test_penalties_are_taken_in_their_ranges(http: httpx.Client) -> None:
    assert complete(http, repetition_penalty=0).json()["error"]["param"] == "repetition_penalty"
    assert complete(http, presence_penalty=-2, frequency_penalty=-2, repetition_penalty=0.01).status_code == 200


def test_a_greedy_row_is_the_same_beside_sampled_ones(http: httpx.Client) -> None:
    def tokens(response: httpx.Response) -> list[str]:
        return response.json()["choices"][0]["logprobs"]["tokens"]

    alone = tokens(complete(http, temperature=0, max_tokens=30, logprobs=0))
    with http.stream(
        "POST", "/v1/completions", json={"model": "toy", "prompt": "y", "n": 6, "max_tokens": 200, "stream": True}
    ) as other:
        next(other.iter_lines())
        assert tokens(complete(http, temperature=0, max_tokens=30, logprobs=0)) == alone


@pytest.mark.parametrize(
    "fields", [{"top_p": 0.01}, {"top_k": 1}, {"top_k": 50}, {"min_p": 1}, {"seed": 1}, {"seed": 2}]
)
def test_temperature_0_is_the_argmax_whatever_else_is_asked(http: httpx.Client, fields: dict[str, float]) -> None:
    choice = complete(http, temperature=0, max_tokens=20, logprobs=1, **fields).json()["choices"][0]
    logprobs = choice["logprobs"]
    best = [max(top.values()) for top in logprobs["top_logprobs"]]
    assert logprobs["token_logprobs"] == best
    assert choice["text"] == text_of(http, temperature=0, max_tokens=20)


def test_a_seed_does_not_change_the_temperature(http: httpx.Client) -> None:
    fields = {"max_tokens": 100, "top_k": 0, "logprobs": 0}

    def mean(**more: float) -> float:
        logprobs = [
            logprob
            for seed in range(4)
            for logprob in complete(http, **fields, **more, seed=seed).json()["choices"][0]["logprobs"][
                "token_logprobs"
            ]
        ]
        return sum(logprobs) / len(logprobs)

    assert mean(temperature=0.2) > mean(temperature=1) > mean(temperature=2)


def test_log_probabilities_are_finite_json(http: httpx.Client) -> None:
    logprobs = complete(http, logprobs=20, max_tokens=10, temperature=0.01).json()["choices"][0]["logprobs"]
    told = [value for top in logprobs["top_logprobs"] for value in top.values()]
    assert len(told) > 100
    assert all(map(math.isfinite, told))


def test_ids_in_the_padding_of_the_vocabulary_are_never_sampled(http: httpx.Client) -> None:
    # A sixth of the ids are padding, and at this temperature all are about as likely.
    choices = complete(http, n=8, max_tokens=200, temperature=2, top_k=0, logprobs=0).json()["choices"]
    tokens = [token for choice in choices for token in choice["logprobs"]["tokens"]]
    assert len(tokens) > 1000
    assert all(tokens)
