"""The sampler against a float64 oracle, and the properties that make it the same everywhere."""

import ctypes
import math
import subprocess

import numpy as np
import pytest

from dualpace.build.units import ENGINE
from dualpace.plan import abi
from dualpace.plan.structs import MAX_TOP_LOGPROBS

from .engines import compile_program, write_sources
from .plans import ROOMY
from .test_stress import ADDRESS, THREAD

N = 1000


def address(array):
    return ctypes.c_void_p(array.ctypes.data)


class Probe:
    def __init__(self, library):
        self.library = ctypes.CDLL(str(library))

    def draw(self, logits, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, position=0, threads=1):
        logits = np.ascontiguousarray(logits, dtype=np.float32)
        before = logits.copy()
        token = ctypes.c_int32()
        self.library.probe_draw(
            address(logits), len(logits), ctypes.c_float(temperature), top_k, ctypes.c_float(top_p),
            ctypes.c_float(min_p), ctypes.c_uint64(seed), ctypes.c_uint32(position), threads, ctypes.byref(token),
        )  # fmt: skip
        assert np.array_equal(logits, before, equal_nan=True)
        return token.value

    def rank(self, logits, count=0, threads=1):
        """Logprobs of all ids; the most probable ids, and theirs."""
        logits = np.ascontiguousarray(logits, dtype=np.float32)
        logprobs, top = np.empty_like(logits), abi.fixed_view("TopLogprobs")()
        self.library.probe_rank(address(logits), len(logits), count, threads, address(logprobs), ctypes.byref(top))
        return logprobs, list(top.token[:count]), list(top.logprob[:count])

    def draws(self, logits, count, **params):
        return np.array([self.draw(logits, position=p, **params) for p in range(count)])

    def map(self, name, x):
        x = np.ascontiguousarray(x, dtype=np.float32)
        y = np.empty_like(x)
        getattr(self.library, name)(address(x), address(y), len(x))
        return y


@pytest.fixture(scope="module")
def probe(libraries):
    return Probe(libraries(ROOMY).engine)


@pytest.fixture
def logits():
    return np.random.default_rng(3).normal(0, 3, N).astype(np.float32)


def probabilities(logits, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """What the sampler should draw from. Ties stand or fall together."""
    x = logits.astype(np.float64)
    p = np.exp((x - x.max()) / temperature)
    p[p < min_p] = 0
    if top_k:
        p[p < np.sort(p)[-min(top_k, len(p))]] = 0
    if top_p < 1:
        order = np.sort(p)[::-1]
        p[p < order[np.searchsorted(np.cumsum(order), top_p * p.sum())]] = 0
    return p / p.sum()


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0,) * 4, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(probe, counter, key, expected):
    out = (ctypes.c_uint32 * 4)()
    probe.library.probe_philox((ctypes.c_uint32 * 4)(*counter), (ctypes.c_uint32 * 2)(*key), out)
    assert tuple(out) == expected


def test_exponential_and_logarithm_are_within_a_few_ulp(probe):
    x = np.linspace(-86, 0, 200_001, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.max(np.abs(probe.map("probe_exp", x) - exact) / np.spacing(exact.astype(np.float32))) < 2
    x = np.exp(np.linspace(0, 20, 200_001)).astype(np.float32)[10:]
    exact = np.log(x.astype(np.float64))
    assert np.max(np.abs(probe.map("probe_log", x) - exact) / np.spacing(exact.astype(np.float32))) < 3


@pytest.mark.parametrize("x", [-87.0, -1e30, -math.inf])
def test_the_exponential_is_zero_where_it_would_near_the_subnormals(probe, x):
    assert probe.map("probe_exp", [x])[0] == 0


def log_softmax(logits):
    x = logits.astype(np.float64)
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


@pytest.mark.parametrize("n", [1, 2, 255, 256, 257, N])
def test_greedy_is_the_argmax(probe, n):
    logits = np.random.default_rng(n).normal(0, 2, n).astype(np.float32)
    assert probe.draw(logits, temperature=0, top_k=3, top_p=0.1) == logits.argmax()


@pytest.mark.parametrize("tied", [(5, 700), (256, 512), (0, 999), (3, 259)])
def test_ties_go_to_the_lowest_id(probe, logits, tied):
    logits[list(tied)] = 50
    assert probe.draw(logits, temperature=0) == min(tied)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("at", [0, 300, N - 1])
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_row_that_is_not_finite_has_no_token(probe, logits, value, at, temperature):
    logits[at] = value
    assert probe.draw(logits, temperature=temperature) == -1


def test_minus_infinity_is_never_drawn(probe, logits):
    logits[:] = -math.inf
    assert probe.draw(logits) == -1
    logits[[7, 300]] = -1e30, -1e30
    assert set(probe.draws(logits, 100)) == {7, 300}


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
@pytest.mark.parametrize(
    "params",
    [
        {"top_k": 1},
        {"top_k": 7},
        {"top_k": N},
        {"top_p": 0.5},
        {"top_p": 0.9},
        {"min_p": 0.1},
        {"top_k": 40, "top_p": 0.8, "min_p": 0.02, "temperature": 0.7},
    ],
    ids=str,
)
def test_what_can_be_drawn_is_what_the_oracle_keeps(probe, logits, params, scale):
    logits *= scale
    kept = np.flatnonzero(probabilities(logits, **params))
    drawn = probe.draws(logits, 400, **params)
    assert set(drawn) <= set(kept)
    if len(kept) < 20:
        assert len(set(drawn)) >= len(kept) - 2


@pytest.mark.parametrize("params", [{}, {"temperature": 2.0}, {"top_k": 30}, {"top_p": 0.8}], ids=str)
def test_draws_follow_the_distribution(probe, logits, params):
    p = probabilities(logits, **params)
    draws = 20_000
    counts = np.bincount(probe.draws(logits, draws, **params), minlength=N)
    # Ids expected rarely are one bin.
    large = p * draws >= 10
    expected = np.append(p[large], p[~large].sum()) * draws
    seen = np.append(counts[large], counts[~large].sum())
    bins = expected > 0
    statistic = ((seen[bins] - expected[bins]) ** 2 / expected[bins]).sum()
    freedom = bins.sum() - 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)


def test_seed_and_position_decide(probe, logits):
    first = probe.draws(logits, 64, seed=1)
    assert (first == probe.draws(logits, 64, seed=1)).all()
    assert (first != probe.draws(logits, 64, seed=2)).sum() > 32
    assert (first != probe.draws(logits, 64, seed=1 + (1 << 32))).sum() > 32
    assert len(set(first)) > 10


@pytest.mark.parametrize("params", [{}, {"top_k": 9}, {"top_p": 0.7, "min_p": 0.01}, {"temperature": 0}], ids=str)
def test_the_number_of_threads_changes_no_bit(probe, logits, params):
    for position in range(5):
        results = {probe.draw(logits, position=position, threads=t, **params) for t in (1, 2, 4)}
        assert len(results) == 1


@pytest.mark.parametrize("scale", [0.1, 3.0, 100.0])
@pytest.mark.parametrize("n", [1, 19, 256, N])
def test_logprobs_are_the_log_softmax_and_the_best_come_first(probe, n, scale):
    logits = np.random.default_rng(n).normal(0, scale, n).astype(np.float32)
    expected = log_softmax(logits)
    logprobs, ids, best = probe.rank(logits, MAX_TOP_LOGPROBS)
    assert logprobs == pytest.approx(expected, rel=1e-6, abs=2e-5)
    order = np.argsort(-logits, kind="stable")[:MAX_TOP_LOGPROBS]
    assert ids == [*order, *[-1] * (MAX_TOP_LOGPROBS - len(order))]
    assert best[: len(order)] == list(logprobs[order])


def test_equally_probable_ids_are_ranked_by_id(probe, logits):
    logits = logits.round()
    logits[[3, 259, 515, 900]] = 50
    _, ids, _ = probe.rank(logits, MAX_TOP_LOGPROBS)
    assert ids[:4] == [3, 259, 515, 900]
    assert ids == list(np.argsort(-logits, kind="stable")[:MAX_TOP_LOGPROBS])


def test_what_cannot_be_drawn_is_not_ranked(probe, logits):
    logits[:] = -math.inf
    logits[[7, 300]] = 1, 2
    logprobs, ids, best = probe.rank(logits, 4)
    assert ids == [300, 7, -1, -1]
    assert best[:2] == pytest.approx([-0.31326, -1.31326], abs=1e-5)
    assert logprobs[0] == -math.inf


def test_the_number_of_threads_changes_no_bit_of_a_ranking(probe, logits):
    alone, *others = (probe.rank(logits, MAX_TOP_LOGPROBS, threads) for threads in (1, 2, 4))
    for other in others:
        assert (alone[0] == other[0]).all()
        assert alone[1:] == other[1:]


def test_the_sampler_is_clean_under_the_sanitizers_and_its_results_do_not_move(tmp_path):
    write_sources(ROOMY, tmp_path)
    printed = set()
    for flags, members in ((ADDRESS, 1), (THREAD, 4)):
        program = compile_program(tmp_path, "sampling.cpp", *ENGINE, *flags)
        printed.add(subprocess.run([program, str(members)], check=True, stdout=subprocess.PIPE, timeout=300).stdout)
    assert len(printed) == 1
