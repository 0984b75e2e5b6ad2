"""What a soak counts as lost, and as grown."""

import pytest

from benchmarks.soak import Down, faults, grown, quarters, unexplained


def request(intended: float, end: float, error: str = "", tpot: float = 0.01) -> dict[str, str]:
    times = {"intended_s": intended, "first_s": intended + 0.1, "last_s": intended + 0.1 + 9 * tpot, "end_s": end}
    return {name: str(time) for name, time in times.items()} | {"tokens": "10", "error": error}


@pytest.mark.parametrize(
    ("intended", "end", "lost"),
    [(1.0, 4.9, True), (1.0, 5.1, False), (6.0, 6.1, False), (7.9, 20.0, False), (8.1, 20.0, True)],
)
def test_a_failure_is_explained_by_a_frontend_that_was_down_meanwhile(intended, end, lost):
    requests = [request(intended, end, "connection: closed"), request(1.0, 30.0)]
    assert unexplained(requests, [Down(5.0, 8.0)]) == ["connection: closed"] * lost


def test_latencies_are_of_requests_that_no_kill_met_by_quarters():
    requests = [request(at, at + 0.5, tpot=0.01 * (1 + at // 2)) for at in (0.0, 0.5, 2.5, 4.5, 6.5)]
    found = quarters([*requests, request(3.9, 4.0), request(1.0, 1.1, "x")], [Down(3.8, 4.1)], 8.0)
    assert [quarter["requests"] for quarter in found] == [2, 1, 1, 1]
    assert [quarter["tpot_p50_s"] for quarter in found] == pytest.approx([0.01, 0.02, 0.03, 0.04])
    assert found[0]["ttft_p50_s"] == pytest.approx(0.1)


def test_growth_leaves_out_the_time_in_which_caches_fill():
    sizes = [1.0] * 10 + [2.0] * 10 + [2.0] * 10 + [3.0] * 10
    assert grown([{"engine": size} for size in sizes], "engine") == pytest.approx(1.5)
    assert grown([], "engine") == 1.0


STEADY = {"ttft_p50_s": 0.1, "tpot_p50_s": 0.01, "tpot_p99_s": 0.02}
GOOD = {"lost": [], "held": {"rows": 0, "pages": 0}, "memory_growth": {"engine": 1.0}, "quarters": [STEADY] * 4}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lost": ["timeout"]}, "1 requests are lost: timeout"),
        ({"held": {"rows": 0, "pages": 3}}, "still has 3 pages"),
        ({"memory_growth": {"engine": 1.2}}, "1.20 times"),
        ({"quarters": [STEADY, STEADY, STEADY, STEADY | {"tpot_p99_s": 0.03}]}, "tpot_p99_s is 0.0300"),
    ],
)
def test_what_should_not_have_happened_is_said(changes, said):
    assert faults(GOOD) == []
    [fault] = faults(GOOD | changes)
    assert said in fault
