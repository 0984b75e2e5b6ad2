"""Penalties, biases and bans: on their own against a float64 oracle, and through the engine to the tokens it sends."""

import ctypes
import math

import numpy as np
import pytest

from dualpace.engine.ring import SamplingParams
from dualpace.plan.structs import MAX_BIAS

from .plans import ROOMY, TIGHT, VOCAB

N = 1000
PROMPT = [5, 900, 5, 17, 2000]
GENERATED = [7, 900, 7, 7, 33]


def oracle(logits, prompt, generated, *, repetition=1.0, presence=0.0, frequency=0.0, biases=(), banned=()):
    """As the API of each penalty defines it; ids beyond the logits are padding."""
    x = logits.astype(np.float64)
    for token in {*prompt, *generated}:
        if token < len(x):
            x[token] = x[token] / repetition if x[token] > 0 else x[token] * repetition
    for token in set(generated):
        if token < len(x):
            x[token] -= frequency * generated.count(token) + presence
    for token, bias in dict(biases).items():
        if token < len(x):
            x[token] += bias
    for token in banned:
        x[token] = -math.inf
    return x


@pytest.fixture(scope="module")
def library(libraries):
    return ctypes.CDLL(str(libraries(ROOMY).engine))


@pytest.fixture
def logits():
    return np.random.default_rng(4).normal(0, 3, N).astype(np.float32)


def adjusted(library, logits, prompt, generated, *, repetition=1.0, presence=0.0, frequency=0.0, biases=(), banned=(),
             threads=1):  # fmt: skip
    history = np.array([*prompt, *generated], dtype=np.int32)
    ids, values = np.array([i for i, _ in biases], np.int32), np.array([b for _, b in biases], np.float32)
    banned = np.array(banned, np.int32)
    result = np.empty_like(logits)
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (logits, history, ids, values, banned, result)]
    library.probe_adjust(
        pointers[0], len(logits), pointers[1], len(prompt), len(history), ctypes.c_float(repetition),
        ctypes.c_float(presence), ctypes.c_float(frequency), len(biases), pointers[2], pointers[3], len(banned),
        pointers[4], threads, pointers[5],
    )  # fmt: skip
    return result


CASES = [
    {},
    {"repetition": 1.3},
    {"repetition": 0.8},
    {"presence": 1.5},
    {"presence": -2.0},
    {"frequency": 0.7},
    {"repetition": 1.2, "presence": -0.5, "frequency": 0.25},
    {"biases": [(0, 100.0), (7, -100.0), (999, 0.5)]},
    {"biases": [(7, 3.0), (1500, 3.0)], "repetition": 1.1, "frequency": 2.0, "banned": [7, 8]},
    {"banned": [0, 999]},
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("generated", [[], GENERATED], ids=["nothing generated", "tokens generated"])
def test_logits_are_adjusted_as_the_oracle_does(library, logits, case, generated):
    result = adjusted(library, logits, PROMPT, generated, **case)
    assert result == pytest.approx(oracle(logits, PROMPT, generated, **case), rel=1e-6, abs=1e-6)


def test_a_long_history_is_counted_exactly_by_any_number_of_threads(library, logits):
    history = np.random.default_rng(1).zipf(1.3, 20_000) % 1100
    prompt, generated = history[:5000].tolist(), history[5000:].tolist()
    case = {"repetition": 1.05, "presence": 0.5, "frequency": 0.001}
    alone = adjusted(library, logits, prompt, generated, **case)
    assert alone == pytest.approx(oracle(logits, prompt, generated, **case), rel=1e-5, abs=1e-5)
    for threads in (2, 4):
        assert (adjusted(library, logits, prompt, generated, threads=threads, **case) == alone).all()


@pytest.mark.parametrize("case", [c for c in CASES if c], ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_stays_so(library, logits, case, value):
    for token in (0, 7, 900):
        logits[token] = value
        assert not adjusted(library, logits, PROMPT, GENERATED, **case)[token] < math.inf


def test_minus_infinity_stays_so(library, logits):
    logits[[5, 7, 100]] = -math.inf
    result = adjusted(
        library, logits, PROMPT, GENERATED, repetition=0.5, presence=-2.0, frequency=-2.0, biases=[(100, 100.0)]
    )
    assert (result[[5, 7, 100]] == -math.inf).all()


def generate(toy, logits_at, params):
    """The events of one request whose logits after `n` generated tokens are `logits_at(n)`."""
    request = toy.submit([5, 9, 5], params)
    assert request
    events, sampled = [], 0
    while not (events and events[-1].finish):
        step = toy.scheduler.schedule()
        if step.samples:
            logits = np.ascontiguousarray(logits_at(sampled), dtype=np.float32)
            sampled += 1
            toy.scheduler.sample(logits.ctypes.data, len(logits))
        events += toy.rings[0].wait(0)
    return events


@pytest.fixture(scope="module")
def flat():
    """Logits so close that whatever was said decides what is said next."""
    return np.random.default_rng(9).normal(0, 0.4, (40, VOCAB))


@pytest.mark.parametrize("plan", [ROOMY, TIGHT], ids=lambda plan: plan.name)
@pytest.mark.parametrize(
    "case",
    [
        {"repetition": 1.5},
        {"presence": 0.6},
        {"frequency": 0.3},
        {"frequency": -0.3},
        {"repetition": 1.1, "presence": 0.2, "frequency": 0.1, "biases": [(5, 0.5), (9, -100.0), (60, 0.25)]},
    ],
    ids=str,
)
def test_greedy_text_follows_its_own_history(toys, flat, plan, case):
    expected = []
    for row in flat:
        expected.append(int(oracle(row.astype(np.float32), [5, 9, 5], expected, **case).argmax()))
    names = {"repetition": "repetition_penalty", "presence": "presence_penalty", "frequency": "frequency_penalty"}
    given = {names[name]: value for name, value in case.items() if name in names}
    params = SamplingParams(max_tokens=40, temperature=0.0, logit_bias=tuple(case.get("biases", ())), **given)
    events = generate(toys(plan), lambda n: flat[n], params)
    assert [event.token for event in events] == expected
    assert len(set(expected)) > 5 or case.get("frequency", 0) < 0


def test_logprobs_are_the_models_whatever_is_asked_of_the_sampling(toys, flat):
    params = SamplingParams(
        max_tokens=10, temperature=1.7, top_p=0.95, frequency_penalty=1.0, logit_bias=((7, 1.0),), logprobs=3
    )
    events = generate(toys(ROOMY), lambda n: flat[n], params)
    for event, row in zip(events, flat, strict=False):
        expected = row - np.log(np.exp(row).sum())
        assert event.logprob == pytest.approx(expected[event.token], abs=1e-5)
        order = np.argsort(-row)[:3]
        assert [token for token, _ in event.top] == order.tolist()
        assert [logprob for _, logprob in event.top] == pytest.approx(expected[order], abs=1e-5)


def test_logprobs_come_only_to_those_who_ask(toys, flat):
    events = generate(toys(ROOMY), lambda n: flat[n], SamplingParams(max_tokens=3))
    assert {(event.logprob, event.top) for event in events} == {(0.0, ())}
    events = generate(toys(ROOMY), lambda n: flat[n], SamplingParams(max_tokens=3, logprobs=0))
    assert all(event.logprob < 0 and event.top == () for event in events)


def test_logprobs_travel_round_the_ring(toys, flat):
    """A token ring of sixteen records, gone round several times by a reader that lags."""
    toy = toys(TIGHT)
    params = SamplingParams(max_tokens=40, temperature=0.0, logprobs=20)
    tags = [toy.rings[0].submit(tag, [5 + tag], params) and tag for tag in range(3)]
    seen = {tag: [] for tag in tags}
    for step in range(400):
        samples = toy.scheduler.schedule().samples
        if samples:
            slots = toy.scheduler.buffers["sample_index"][:samples]
            position = toy.scheduler.buffers["position"][slots]
            logits = np.ascontiguousarray(flat[position % 40], dtype=np.float32)
            toy.scheduler.sample(logits.ctypes.data, VOCAB)
        if step % 7 == 0:
            for event in toy.rings[0].wait(0):
                seen[event.tag].append(event)
    for events in seen.values():
        assert [event.index for event in events] == list(range(40))
        for n, event in enumerate(events):
            order = np.argsort(-flat[n % 40].astype(np.float32), kind="stable")[:20]
            assert [token for token, _ in event.top] == order.tolist()
            assert event.top[0] == (event.token, event.logprob)


def test_a_bias_cannot_raise_a_padding_id(toys, libraries):
    toy = toys(ROOMY)
    toy.scheduler.close()
    toy.scheduler = type(toy.scheduler)(libraries(ROOMY).engine, toy.memory, ROOMY, vocabulary=50)
    logits = np.zeros(VOCAB)
    logits[50:] = 9
    params = SamplingParams(
        max_tokens=9, temperature=0.0, logit_bias=((60, 100.0),), frequency_penalty=0.1, logprobs=20
    )
    events = generate(toy, lambda n: logits, params)
    assert all(event.token < 50 and max(token for token, _ in event.top) < 50 for event in events)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0; it has to be from 0.01 to 100"),
        ({"repetition_penalty": math.nan}, "repetition_penalty is nan"),
        ({"presence_penalty": 2.5}, "presence_penalty and frequency_penalty are 2.5 and 0"),
        ({"frequency_penalty": -2.5}, "presence_penalty and frequency_penalty are 0 and -2.5"),
        ({"logit_bias": ((VOCAB, 1.0),)}, f"logit_bias holds the token id {VOCAB}; ids are from 0 to {VOCAB - 1}"),
        ({"logit_bias": ((-1, 1.0),)}, "logit_bias holds the token id -1"),
        ({"logit_bias": ((3, 100.5),)}, "logit_bias of token id 3 is 100.5"),
        ({"logit_bias": ((3, -math.inf),)}, "logit_bias of token id 3 is -inf"),
        ({"logit_bias": tuple((i % VOCAB, 1.0) for i in range(MAX_BIAS + 1))}, "logit_bias has 301 ids, at most 300"),
        (
            {"logit_bias": ((3, 1.0), (3, 2.0))},
            "logit_bias of token id 3 is 2; biases are from -100 to 100, an id has one",
        ),
        ({"logprobs": 21}, "logprobs asks for the 21 most probable tokens, at most 20"),
        ({"logprobs": -1}, "logprobs is -1"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_what_cannot_be_asked_never_enters_a_ring(toys, change, words):
    with pytest.raises(ValueError, match=words):
        toys(ROOMY).submit([1], SamplingParams(max_tokens=4, **change))
