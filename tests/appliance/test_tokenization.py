"""Prompts as token ids and back."""

import threading

import pytest
from pydantic_core import to_json

from dualpace.appliance import tokenization

from .bundles import BOS, CONTEXT, VOCAB
from .conftest import Frontend, ServeToy
from .test_refusals import CHAT, SURROGATE, post

TEXT = "größer 日本語 🙂 hello"


def test_a_text_comes_back(toy: Frontend):
    tokenized = toy.http.post("/tokenize", json={"model": "toy", "prompt": TEXT}).json()
    assert tokenized["tokens"] == toy.encode(TEXT)
    assert tokenized["count"] == len(tokenized["tokens"])
    assert tokenized["max_model_len"] == CONTEXT
    assert toy.http.post("/detokenize", json={"tokens": tokenized["tokens"]}).json() == {"prompt": TEXT}


def test_entries_of_the_vocabulary_are_those_of_the_tokens(toy: Frontend):
    body = {"prompt": "hello world", "return_token_strs": True}
    tokenized = toy.http.post("/tokenize", json=body).json()
    assert "".join(tokenized["token_strs"]).replace("Ġ", " ") == "hello world"
    assert len(tokenized["token_strs"]) == tokenized["count"]


@pytest.mark.parametrize(("asked", "first"), [(None, True), (True, True), (False, False)])
def test_the_bos_is_put_first_unless_it_is_not_wanted(serve: ServeToy, asked: bool | None, first: bool):
    toy = serve(add_bos=True)
    tokens = toy.http.post("/tokenize", json={"prompt": "hello", "add_special_tokens": asked}).json()["tokens"]
    assert (tokens[0] == toy.deployment.generation.bos_token) == first
    assert toy.http.post("/detokenize", json={"tokens": tokens}).json()["prompt"] == "hello"


def test_a_chat_is_written_as_the_model_would_read_it(toy: Frontend):
    toy.ring.submitted.clear()
    tokens = toy.http.post("/tokenize", json={"messages": CHAT["messages"]}).json()["tokens"]
    toy.http.post("/v1/chat/completions", json=CHAT | {"max_tokens": 1})
    assert toy.ring.submitted[0][0] == tokens
    body = {"messages": CHAT["messages"], "add_generation_prompt": False}
    assert toy.http.post("/tokenize", json=body).json()["count"] < len(tokens)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": CHAT["messages"]}, "prompt"),
        ("/tokenize", {"prompt": "x", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"prompt": f"a{SURROGATE}"}, "prompt"),
        ("/tokenize", {"prompt": ["x"]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "x", "other": 1}, "other"),
        ("/tokenize", {"prompt": "x" * (tokenization.MOST_CHARACTERS + 1)}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x" * 600_000}] * 2}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [70] * (tokenization.MOST_IDS + 1)}, "tokens"),
        ("/detokenize", {"tokens": [VOCAB]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
    ],
)
def test_what_cannot_be_is_refused_by_name(toy: Frontend, path: str, body: dict, param: str):
    response = post(toy, path, body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text


def test_another_model_is_not_found(toy: Frontend):
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [5]})):
        assert post(toy, path, body | {"model": "other"}).json()["error"]["code"] == "model_not_found"


def test_a_model_without_a_tokenizer_says_so(serve: ServeToy):
    toy = serve(with_tokenizer=False)
    assert "takes token ids" in post(toy, "/tokenize", {"prompt": "x"}).json()["error"]["message"]
    assert post(toy, "/detokenize", {"tokens": [5, 6]}).json() == {"prompt": "5 6 "}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "x " * 50_000, "return_token_strs": True}),
        ("/detokenize", {"tokens": [70] * 50_000}),
    ],
)
def test_a_long_text_keeps_no_other_request_waiting(
    toy: Frontend, monkeypatch: pytest.MonkeyPatch, path: str, body: dict
):
    threads = []

    def noting(answer: object) -> bytes:
        threads.append(threading.current_thread().name)
        return to_json(answer)

    monkeypatch.setattr(tokenization, "to_json", noting)
    assert post(toy, path, body).status_code == 200
    assert [name.partition("_")[0] for name in threads] == ["aside"]


def test_special_tokens_have_no_text(toy: Frontend):
    bos = toy.deployment.tokenizer._tokenizer.token_to_id(BOS)
    assert post(toy, "/detokenize", {"tokens": [bos, *toy.encode("x")]}).json() == {"prompt": "x"}
