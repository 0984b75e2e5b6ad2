"""Log probabilities in the API's two shapes, whole and streamed, beside the text that they belong to."""

import pytest

from dualpace.engine.ring import SamplingParams

from .bundles import EOS
from .conftest import Frontend, ServeToy

TEXT = "größer 🙂"


def spelled(toy: Frontend, tokens: list[int]) -> list[str]:
    """Tokens as the API writes them."""
    pieces = []
    for token in tokens:
        raw = toy.deployment.tokenizer.token_bytes(token)
        try:
            pieces.append(raw.decode())
        except UnicodeDecodeError:
            pieces.append("bytes:" + "".join(f"\\x{byte:02x}" for byte in raw))
    return pieces


def ask(toy: Frontend, **fields: object):
    """The choice's text, its log probabilities joined, and the reason of its end."""
    reply = toy.openai.completions.create(model="toy", **fields)
    choices = [chunk.choices[0] for chunk in reply] if fields.get("stream") else reply.choices
    joined = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for choice in choices:
        for name, values in joined.items():
            values += getattr(choice.logprobs, name) if choice.logprobs else []
    return "".join(choice.text for choice in choices), joined, choices[-1].finish_reason


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_has_an_entry_a_token(toy: Frontend, stream: bool):
    tokens = toy.encode(TEXT)
    text, logprobs, _ = ask(toy, prompt=tokens, max_tokens=len(tokens), logprobs=2, stream=stream)
    assert text == TEXT
    assert logprobs["tokens"] == spelled(toy, tokens)
    assert any(token.startswith("bytes:") for token in logprobs["tokens"])
    assert logprobs["token_logprobs"] == [-(n + 1) / 8 for n in range(len(tokens))]
    for token, own, top in zip(tokens, logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert top == dict(zip(spelled(toy, [token + 1, token]), (own + 0.0625, own), strict=True))
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert token.startswith("bytes:") or text[offset:].startswith(token)


@pytest.mark.parametrize("asked", [0, 1])
def test_the_chosen_token_is_always_among_the_top(toy: Frontend, asked: int):
    tokens = toy.encode("fox")
    _, logprobs, _ = ask(toy, prompt=tokens, max_tokens=len(tokens), logprobs=asked)
    for token, own, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert top[token] == own
        assert len(top) == asked + 1


def test_nobody_gets_logprobs_unasked(toy: Frontend):
    toy.ring.submitted.clear()
    assert toy.openai.completions.create(model="toy", prompt="fox").choices[0].logprobs is None
    chat = toy.openai.chat.completions.create(model="toy", messages=[{"role": "user", "content": "x"}], logprobs=False)
    assert chat.choices[0].logprobs is None
    assert [params.logprobs for _, params in toy.ring.submitted] == [None, None]


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_has_tokens_bytes_and_alternatives(serve: ServeToy, stream: bool):
    toy = serve(template="{{ messages[0].content }}")
    tokens = toy.encode(TEXT)
    reply = toy.openai.chat.completions.create(
        model="toy", messages=[{"role": "user", "content": TEXT}], max_tokens=len(tokens), stream=stream,
        logprobs=True, top_logprobs=3,
    )  # fmt: skip
    choices = [chunk.choices[0] for chunk in reply] if stream else reply.choices
    entries = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    assert [entry.token for entry in entries] == spelled(toy, tokens)
    assert bytes(byte for entry in entries for byte in entry.bytes).decode() == TEXT
    assert [entry.logprob for entry in entries] == [-(n + 1) / 8 for n in range(len(tokens))]
    for entry in entries:
        above, own, never = entry.top_logprobs
        assert above.logprob == entry.logprob + 0.0625
        assert (own.token, own.bytes, own.logprob) == (entry.token, entry.bytes, entry.logprob)
        assert never.logprob == -9999.0


def test_a_chat_may_ask_for_the_chosen_tokens_alone(toy: Frontend):
    reply = toy.openai.chat.completions.create(
        model="toy", messages=[{"role": "user", "content": "x"}], max_tokens=3, logprobs=True
    )
    assert [entry.top_logprobs for entry in reply.choices[0].logprobs.content] == [[], [], []]


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_a_stop_string_are_left_out_with_its_text(toy: Frontend, stream: bool):
    tokens = toy.encode("hello stop sign")
    text, logprobs, reason = ask(toy, prompt=tokens, max_tokens=60, stop="stop", logprobs=0, stream=stream)
    assert (text, reason) == ("hello ", "stop")
    assert all(offset < len(text) for offset in logprobs["text_offset"])
    assert "".join(logprobs["tokens"]).startswith(text)


@pytest.mark.parametrize("stream", [False, True])
def test_the_end_token_has_no_entry(toy: Frontend, stream: bool):
    tokens = toy.encode("fox")
    _, logprobs, _ = ask(toy, prompt=[*tokens, *toy.encode(EOS)], max_tokens=50, logprobs=1, stream=stream)
    assert logprobs["tokens"] == spelled(toy, tokens)


def test_an_answer_without_a_token_has_an_empty_list(toy: Frontend):
    _, logprobs, reason = ask(toy, prompt=toy.encode(EOS), max_tokens=5, logprobs=1)
    assert (logprobs["tokens"], reason) == ([], "stop")


def test_a_special_token_is_named_and_adds_no_bytes(serve: ServeToy):
    toy = serve(template=EOS)
    reply = toy.openai.chat.completions.create(
        model="toy", messages=[{"role": "user", "content": "x"}], max_tokens=1, logprobs=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    (entry,) = reply.choices[0].logprobs.content
    assert (entry.token, entry.bytes) == (EOS, None)


def test_a_model_without_a_tokenizer_writes_ids(serve: ServeToy):
    toy = serve(with_tokenizer=False, template=None)
    text, logprobs, _ = ask(toy, prompt=[5, 6], max_tokens=2, logprobs=1)
    assert text == "5 6 "
    assert (logprobs["tokens"], logprobs["text_offset"]) == (["5 ", "6 "], [0, 2])


def test_the_models_own_repetition_penalty_is_the_default(serve: ServeToy):
    toy = serve(repetition_penalty=1.05)
    toy.openai.completions.create(model="toy", prompt="x", max_tokens=1)
    toy.openai.completions.create(model="toy", prompt="x", max_tokens=1, extra_body={"repetition_penalty": 1.0})
    sent: list[SamplingParams] = [params for _, params in toy.ring.submitted]
    assert [params.repetition_penalty for params in sent] == [1.05, 1.0]
