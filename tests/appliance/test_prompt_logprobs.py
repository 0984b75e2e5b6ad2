"""Log probabilities of an echoed prompt, as evaluation harnesses ask for them."""

import math
from operator import itemgetter

import pytest

from dualpace.appliance.dispatch import INBOX_TOKENS, Inbox
from dualpace.engine.ring import Finish, TokenEvent

from .bundles import EOS
from .conftest import Frontend, ServeToy
from .test_logprobs import TEXT, ask, spelled

FLOOR = -9999.0


def scores(tokens: int) -> list[float | None]:
    """What the fake ring says of a prompt."""
    return [None] + [FLOOR if n % 3 == 0 else -n / 8 for n in range(1, tokens)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_text", [False, True])
def test_an_echoed_prompt_has_an_entry_a_token(toy: Frontend, stream: bool, as_text: bool):
    tokens = toy.encode(TEXT)
    prompt = TEXT if as_text else tokens
    text, logprobs, reason = ask(toy, prompt=prompt, max_tokens=len(tokens), logprobs=1, echo=True, stream=stream)
    assert (text, reason) == (2 * TEXT, "length")
    assert logprobs["tokens"] == 2 * spelled(toy, tokens)
    own = logprobs["token_logprobs"]
    assert own == scores(len(tokens)) + [-(n + 1) / 8 for n in range(len(tokens))]
    assert logprobs["top_logprobs"][0] is None
    for token, logprob, top in zip(logprobs["tokens"][1:], own[1:], logprobs["top_logprobs"][1:], strict=True):
        assert top[token] == logprob
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert token.startswith("bytes:") or text[offset:].startswith(token)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["x", TEXT])
def test_nothing_needs_to_be_generated(toy: Frontend, prompt: str, stream: bool):
    text, logprobs, reason = ask(toy, prompt=prompt, max_tokens=0, logprobs=0, echo=True, stream=stream)
    assert (text, reason) == (prompt, "length")
    assert logprobs["tokens"] == spelled(toy, toy.encode(prompt))
    assert logprobs["token_logprobs"] == scores(len(logprobs["tokens"]))


@pytest.mark.parametrize("ending", ["", EOS])
@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a_harness_finds_its_continuations(toy: Frontend, max_tokens: int, ending: str):
    """The request of lm-evaluation-harness' `local-completions`, and how it reads the answer to it."""
    contexts, continuations = [ending + "one fox", ending + "the"], [" jumps", " lazy dog"]
    prompts = [toy.encode(a) + toy.encode(b) for a, b in zip(contexts, continuations, strict=True)]
    body = {
        "model": "toy", "prompt": prompts, "temperature": 0, "max_tokens": max_tokens, "logprobs": 1, "seed": 1234,
        "echo": True,
    }  # fmt: skip
    answer = toy.http.post("/v1/completions", json=body).json()
    for choice, prompt, context in zip(
        sorted(answer["choices"], key=itemgetter("index")), prompts, contexts, strict=True
    ):
        logprobs, begin = choice["logprobs"], len(toy.encode(context))
        # With a token generated the harness takes the last entry off, be it of an end token or not.
        end = -1 if max_tokens else None
        assert logprobs["token_logprobs"][begin:end] == scores(len(prompt))[begin:]
        best = [max(top.values()) for top in logprobs["top_logprobs"][begin:end]]
        assert best == logprobs["token_logprobs"][begin:end]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_of_the_prompt_stops_nothing(toy: Frontend, stream: bool):
    tokens = toy.encode("hello stop sign")
    text, logprobs, reason = ask(toy, prompt=tokens, max_tokens=60, stop="stop", logprobs=0, echo=True, stream=stream)
    assert (text, reason) == ("hello stop signhello ", "stop")
    assert logprobs["tokens"][: len(tokens)] == spelled(toy, tokens)
    assert all(offset < len(text) for offset in logprobs["text_offset"])


@pytest.mark.parametrize("stream", [False, True])
def test_choices_and_prompts_have_their_own(toy: Frontend, stream: bool):
    reply = toy.openai.completions.create(
        model="toy", prompt=["the fox", "a lazy dog"], n=2, max_tokens=1, logprobs=0, echo=True, stream=stream
    )
    choices = [chunk.choices[0] for chunk in reply] if stream else reply.choices
    for index, prompt in enumerate(["the fox", "the fox", "a lazy dog", "a lazy dog"]):
        own = [choice for choice in choices if choice.index == index]
        tokens = [token for choice in own if choice.logprobs for token in choice.logprobs.tokens]
        assert "".join(choice.text for choice in own).startswith(prompt)
        assert tokens[:-1] == spelled(toy, toy.encode(prompt))


def test_a_bos_has_an_entry_and_no_text(serve: ServeToy):
    toy = serve(add_bos=True)
    text, logprobs, _ = ask(toy, prompt="fox", max_tokens=0, logprobs=1, echo=True)
    assert text == "fox"
    assert logprobs["text_offset"][:2] == [0, 0]
    assert logprobs["token_logprobs"] == scores(1 + len(toy.deployment.tokenizer.encode("fox", add_special=False)))


def test_a_model_without_a_tokenizer_writes_ids(serve: ServeToy):
    toy = serve(with_tokenizer=False, template=None)
    text, logprobs, _ = ask(toy, prompt=[5, 6], max_tokens=1, logprobs=0, echo=True)
    assert text == "5 6 5 "
    assert (logprobs["tokens"], logprobs["text_offset"]) == (["5 ", "6 ", "5 "], [0, 2, 4])


def test_nobody_gets_them_unasked(toy: Frontend):
    toy.ring.submitted.clear()
    for fields in ({"echo": True}, {"logprobs": 1}, {"echo": False, "logprobs": 1}, {"echo": True, "logprobs": 3}):
        toy.openai.completions.create(model="toy", prompt="fox", max_tokens=1, **fields)
    assert [params.prompt_logprobs for _, params in toy.ring.submitted] == [None, None, None, 3]


def test_a_client_is_not_behind_for_the_length_of_its_prompt():
    inbox = Inbox()
    given = TokenEvent(1, 1, 5, -math.inf, Finish.NONE, 9000, 0, of_prompt=True)
    assert all(inbox.put(0, given) for _ in range(2 * INBOX_TOKENS))
    drawn = given._replace(of_prompt=False)
    assert [inbox.put(0, drawn) for _ in range(INBOX_TOKENS + 1)] == [True] * INBOX_TOKENS + [False]
