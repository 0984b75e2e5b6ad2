"""What follows from two looks at metrics."""

import pytest

from dualpace.scrape import Look, Looks, ScrapeError, parse

TEXT = r"""
# HELP dualpace_info What serves.
# TYPE dualpace_info gauge
dualpace_info{model_name="a \"b\\c",version="1",target="cpu"} 1
dualpace_kv_pages{model_name="a \"b\\c",state="held"} 3
dualpace_ttft_bucket{model_name="a",le="0.5"} 2
dualpace_ttft_bucket{model_name="a",le="+Inf"} 3
dualpace_ttft_sum{model_name="a"} 1.25
vllm:num_requests_running{model_name="a",engine="0"} 7
"""


def look(time: float, counts: list[float], total: float = 0.0) -> Look:
    bounds = (1.0, 2.0, 4.0, float("inf"))
    values = {"h_count": counts[-1], "h_sum": total, "c": counts[0]}
    return Look(time, values, {"h": list(zip(bounds, counts, strict=True))}, {})


def looks(*all_: Look) -> Looks:
    made = Looks()
    for one in all_:
        made.add(one)
    return made


def test_a_look_is_read_as_it_was_written():
    read = parse(TEXT, 5.0, "http://x")
    assert read.info["model_name"] == 'a "b\\c'
    assert read.values == {
        "dualpace_info|version=1|target=cpu": 1,
        "dualpace_kv_pages|state=held": 3,
        "dualpace_ttft_sum": 1.25,
    }
    assert read.buckets == {"dualpace_ttft": [(0.5, 2), (float("inf"), 3)]}


def test_what_is_no_appliance_is_refused():
    with pytest.raises(ScrapeError, match="http://x is no appliance"):
        parse("go_goroutines 5\n", 0.0, "http://x")


def test_quantiles_lie_between_the_bounds_of_their_buckets():
    made = looks(look(0, [5, 5, 5, 5]), look(1, [5, 9, 13, 13]))
    # The same as the page's script is tested with.
    assert [made.quantile("h", share, 60) for share in (0.25, 0.5, 0.75, 1)] == [1.5, 2, 3, 4]
    assert looks(look(0, [1, 1, 1, 1]), look(1, [1, 1, 1, 1])).quantile("h", 0.5, 60) is None
    assert looks(look(0, [1, 1, 1, 1]), look(1, [1, 1, 1, 2])).quantile("h", 0.5, 60) == 4


def test_means_and_rates_are_of_the_time_that_was_asked_for():
    made = looks(look(0, [0, 0, 0, 0]), look(8, [2, 2, 2, 2], 8.0), look(10, [10, 10, 10, 10], 12.0))
    assert made.rate("c", 2) == 4
    assert made.rate("c", 60) == 1
    assert made.mean("h", 2) == 0.5
    assert looks(look(0, [1, 1, 1, 1])).rate("c", 60) is None


def test_a_counter_that_began_again_does_not_fall():
    made = looks(look(0, [100, 100, 100, 100]), look(5, [2, 2, 2, 2]), look(10, [12, 12, 12, 12]))
    assert made.rate("c", 60) == 2
    assert looks(look(0, [100, 100, 100, 100]), look(5, [2, 2, 2, 2])).rate("c", 60) is None
