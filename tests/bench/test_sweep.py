"""Runs until a server is saturated: one whose capacity is known, played by figures alone."""

import pytest

from dualpace.bench.load import Limits, Load
from dualpace.bench.result import Figure, Lag, Run, Series
from dualpace.bench.sweep import saturating

CAPACITY = 100.0


def played(load: Load) -> Run:
    """What a server of that capacity would give: with each client at most a tenth of it."""
    offered = load.rate or load.concurrency * CAPACITY / 10
    served = min(offered, CAPACITY)
    in_flight = tuple(10 + (offered - served) * (i + 0.5) for i in range(10))
    good = None if load.limits == Limits() else Figure(value=1.0 if offered <= CAPACITY / 2 else 0.5)
    return Run(
        load=load, started="", duration=10.0, requests=round(10 * offered if load.rate else 10 * served),
        succeeded=round(10 * offered if load.rate else 10 * served),
        errors={}, left_out=0, other_lengths=0, input_tokens=0, output_tokens=0, cached_tokens=0, pieces=0,
        latencies={}, requests_per_s=Figure(value=served), tokens_per_s=Figure(value=served), goodput=None, good=good,
        energy=None, series=Series(step=1, tokens=(), in_flight=in_flight, ttft=(), errors=()), warnings=(),
        lag=Lag(sending_p50=0, sending_p99=0, seeing_p50=0, seeing_p99=0, seeing_most=0, cpu=0, bottleneck=False),
    )  # fmt: skip


def loads(**fields: object) -> list[float]:
    first = Load(url="http://x", model="m", **fields)
    return [run.load.rate or run.load.concurrency for run in saturating(first, played)]


def test_rates_double_and_then_close_in_on_the_capacity():
    found = loads(rate=20)
    assert found[:4] == [20, 40, 80, 160]
    assert len(found) == 7
    assert max(rate for rate in found if rate <= CAPACITY / 0.95) == pytest.approx(CAPACITY, rel=0.1)


def test_a_first_rate_that_is_too_much_is_the_only_one():
    assert loads(rate=200) == [200]


def test_clients_double_until_twice_as_many_gain_nothing():
    assert loads(concurrency=1) == [1, 2, 4, 8, 16, 32]


def test_with_limits_the_server_is_full_where_requests_are_no_longer_good():
    found = loads(rate=20, limits={"ttft": 1.0})
    assert found[:3] == [20, 40, 80]
    assert max(rate for rate in found if rate <= CAPACITY / 2) > CAPACITY / 2 * 0.9
