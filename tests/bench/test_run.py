"""A run's figures from a record that was made by hand: what is exact, exactly."""

from array import array

import pytest

from dualpace.bench.answer import Answer
from dualpace.bench.figures import Ending, run_of
from dualpace.bench.load import Load
from dualpace.bench.record import Record
from dualpace.bench.result import Run

TTFT, ITL, TOKENS = 0.2, 0.05, 11


def run(count: int = 40, failed: tuple[int, ...] = (), *, by_time: bool = False, joules: float | None = None,
        **load: object) -> Run:  # fmt: skip
    """A request every 0.1 s, each answered alike, but those that failed after five tokens."""
    told = Load(url="http://x", model="m", rate=10, **load)
    record = Record(100.0, told.warm_up)
    for i in range(count):
        answer = Answer(100.0 + i / 10, TOKENS)
        tokens = 5 if i in failed else TOKENS
        answer.arrivals = array("d", (answer.intended + TTFT + ITL * j for j in range(tokens)))
        answer.end = answer.arrivals[-1]
        answer.usage, answer.prompt = tokens, 7
        if i in failed:
            answer.fail("stream: broken off")
        record.add(answer)
    return run_of(told, "now", record, Ending(by_time, 0.1, joules))


def test_rates_of_a_run_that_ends_by_its_requests_are_until_the_last_answer():
    found = run()
    seconds = 3.9 + TTFT + ITL * (TOKENS - 1)
    assert found.duration == pytest.approx(seconds)
    assert found.requests_per_s.value == pytest.approx(40 / seconds)
    assert found.tokens_per_s.value == pytest.approx(40 * TOKENS / seconds)


def test_rates_of_a_run_that_ends_by_the_clock_are_of_its_time():
    found = run(by_time=True, duration=4.0, warm_up=2.0)
    assert (found.duration, found.requests) == (2.0, 20)
    # From 2 s to 4 s as many answers end as begin.
    assert found.requests_per_s.value == pytest.approx(10, rel=0.06)
    assert found.tokens_per_s.value == pytest.approx(10 * TOKENS, rel=0.03)


def test_failures_count_as_requests_and_as_nothing_else():
    found = run(failed=(3, 4, 20), limits={"ttft": 1.0})
    assert (found.requests, found.succeeded, found.errors) == (40, 37, {"stream: broken off": 3})
    assert (found.output_tokens, found.input_tokens) == (37 * TOKENS, 37 * 7)
    assert found.good.value == 37 / 40
    assert found.goodput.value == pytest.approx(37 / found.duration)
    assert found.tokens_per_s.value == pytest.approx(37 * TOKENS / found.duration)
    assert found.latencies["itl"].count == 37 * (TOKENS - 1)
    assert sum(found.series.errors) == 3


@pytest.mark.parametrize(("limits", "good"), [({"ttft": 0.201}, 1), ({"ttft": 0.199}, 0), ({"tpot": 0.0501}, 1),
                                              ({"tpot": 0.0499}, 0), ({"e2e": 0.701}, 1), ({"e2e": 0.699}, 0),
                                              ({"ttft": 0.201, "tpot": 0.0499}, 0)])  # fmt: skip
def test_a_request_is_good_within_every_limit(limits, good):
    assert run(limits=limits).good.value == good


def test_energy_is_of_the_tokens_that_came_meanwhile():
    assert run(joules=88.0).energy == pytest.approx(88 / (40 * TOKENS))
    assert run().energy is None


def test_the_load_generator_is_the_bottleneck_where_it_used_its_core():
    assert not run().lag.bottleneck
    record = Record(0.0, 0.0)
    busy = run_of(Load(url="http://x", model="m", rate=1), "now", record, Ending(False, 0.95, None))
    assert busy.lag.bottleneck
    assert "used 95% of its core" in busy.warnings[0]
    assert busy.warnings[-1].startswith("No request succeeded")


def test_a_run_whose_requests_all_began_in_the_warm_up_says_so_and_blames_nobody():
    load = Load(url="http://x", model="m", concurrency=4, duration=20, warm_up=2)
    record = Record(0.0, load.warm_up)
    record.seen(0.5)
    found = run_of(load, "now", record, Ending(True, 0.02, None))
    assert found.warnings == (
        "No request began after the warm-up of 2 s: measure for longer than an answer takes, with --duration.",
    )
