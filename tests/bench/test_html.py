"""The page: whole, by itself, and showing what the result has."""

import re
from html.parser import HTMLParser

import pytest

from dualpace.bench.html import page
from dualpace.bench.plot import Line, plot
from dualpace.bench.result import Figure, Latency, Result, Series

from .test_compare import run

VOID = {"meta"}
SERIES = Series(
    step=0.5, tokens=(10.0, 20.0, 15.0), in_flight=(1.0, 2.0, 1.0), ttft=((0.4, 0.1), (1.2, 0.2)), errors=(0, 1, 0)
)


class Checker(HTMLParser):
    """Notes what is open and what is asked of the network."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.asked: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.asked += [value for name, value in attributes if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def result(label: str = "a server") -> Result:
    quantiles = {name: Figure(value=0.02, low=0.019, high=0.0212) for name in ("p50", "p90", "p95")}
    quantiles |= {name: Figure(value=0.0433) for name in ("p99", "p99.9")}
    latency = Latency(count=400, mean=0.0251, most=0.05, quantiles=quantiles, curve=tuple(i / 4000 for i in range(201)))
    runs = tuple(
        run(0, 100 * rate, 0.05, rate=rate).model_copy(
            update={"latencies": {"ttft": latency, "e2e": latency}, "series": SERIES, "warnings": ("Mind <this>.",),
                    "errors": {"HTTP 429: queue_full": 3}, "requests": 403, "succeeded": 400}
        )
        for rate in (2, 4, 8)
    )  # fmt: skip
    return Result(
        label=label, version="9", machine={"cpu": "A <B>", "gpus": ["G", "G"]}, server={"model": "m"}, runs=runs
    )


def test_the_page_needs_nothing_else_and_is_well_formed():
    text = page(result("<script>alert(1)</script>"))
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    assert checker.asked == []
    assert not re.search(r"<script|@import|url\(|nan|None|Undefined", text)
    assert "prefers-color-scheme: dark" in text


def test_the_page_shows_figures_with_their_intervals_warnings_errors_and_machine():
    checker = Checker()
    checker.feed(page(result()))
    words = " ".join(" ".join(checker.words).split())
    for shown in ("20.0 19.0 – 21.2", "43.3 too few to tell", "Mind <this>.", "3 × HTTP 429: queue_full", "A <B>",
                  "G, G", "200 190 – 210", "By requests offered a second", "50.0"):  # fmt: skip
        assert shown in words


def test_a_single_load_is_no_sweep():
    found = result()
    assert "By requests offered" not in page(found.model_copy(update={"runs": found.runs[:1]}))


@pytest.mark.parametrize(
    "points",
    [[(0.0, 0.0)], [(1.0, 5.0), (2.0, None), (3.0, 4.0)], [(1e-3, 1.0), (1e4, 2.0)], [(5.0, 1e9), (5.0, 1e9)]],
    ids=["nothing", "a gap", "seven decades", "all alike"],
)
@pytest.mark.parametrize("log_x", [False, True])
def test_any_values_can_be_plotted_within_the_frame(points, log_x):
    text = plot([Line("x", points)], "x", "y", log_x=log_x)
    for pair in " ".join(re.findall(r'points="([^"]*)"', text)).split():
        x, y = map(float, pair.split(","))
        assert 56 <= x <= 444
        assert 14 <= y <= 210
    assert "nan" not in text
