"""The status page in a browser."""

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2 as httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from dualpace.appliance.status_page import ASSETS
from tests.appliance.conftest import wait_for
from tests.e2e.appliance import Served, engine_of
from tests.e2e.test_metrics import Values, scrape

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DESKTOP, PHONE = (1320, 900), (390, 844)
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("this machine has no Chromium; on Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        # Its sandbox needs what containers do not give; the page is our own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def is_complaint(message: ConsoleMessage) -> bool:
    """Whether the browser found fault with the page. An answer that is an error may be what a test is about."""
    return message.type == "error" and "the server responded with a status" not in message.text


@pytest.fixture
def opened(browser: Browser, tiny: Served) -> Iterator[Open]:
    """Opens the page once it has looked at the metrics. What it asks others for, or complains about, fails the test."""
    complaints: list[str] = []
    asked: list[str] = []

    def open_page(size: tuple[int, int] = DESKTOP, scheme: str = "light") -> Page:
        width, height = size
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if is_complaint(message) else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(tiny.url)
        page.wait_for_selector("[data-state=ready]")
        return page

    yield open_page
    for context in browser.contexts:
        context.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith((tiny.url, "data:"))] == []


def number(text: str | None) -> float:
    return float((text or "").replace(",", ""))


def metric(values: Values, key: str) -> float:
    name, *labels = key.split("|")
    return values[name, frozenset((label.partition("=")[0], label.partition("=")[2]) for label in labels)]


def test_its_values_are_those_of_metrics(opened: Open, tiny: Served) -> None:
    body = {"model": "toy", "prompt": ["hello", "world"], "max_tokens": 30, "ignore_eos": True}
    assert httpx.post(f"{tiny.url}/v1/completions", json=body).status_code == 200
    page = opened()
    before = number(page.text_content('[data-metric="dualpace_generated_tokens_total"]'))
    for _ in range(3):
        assert httpx.post(f"{tiny.url}/v1/completions", json=body).status_code == 200
    values = scrape(tiny)
    generated = page.locator('[data-metric="dualpace_generated_tokens_total"]')
    expect(generated).to_have_text(f"{metric(values, 'dualpace_generated_tokens_total'):,.0f}")
    assert metric(values, "dualpace_generated_tokens_total") == before + 3 * 2 * 30
    cells = page.query_selector_all("[data-metric]")
    assert len(cells) > 8
    for cell in cells:
        keys = (cell.get_attribute("data-metric") or "").split("+")
        assert number(cell.text_content()) == sum(metric(values, key) for key in keys), keys
    assert number(page.text_content("#batch output")) == metric(values, "dualpace_requests_running")
    assert number(page.text_content("#queue output")) == metric(values, "dualpace_requests_waiting")
    assert number(page.text_content("#kv output")) == 100 * metric(values, "dualpace_kv_usage_ratio")
    ttft = "looks.quantile('dualpace_time_to_first_token_seconds', 1, 20)"
    assert 0 < page.evaluate(ttft) < 100
    mean = page.evaluate("looks.mean('dualpace_inter_token_latency_seconds', 20)")
    assert 0 < mean < page.evaluate("looks.quantile('dualpace_inter_token_latency_seconds', 1, 20)")


def test_quantiles_lie_between_the_bounds_of_their_buckets(opened: Open) -> None:
    counted = """() => {
        const look = (time, counts) => ({ time, values: new Map([["h_count", counts.at(-1)]]),
            buckets: new Map([["h", counts.map((count, i) => [[1, 2, 4, Infinity][i], count])]]) });
        const made = new Looks(60);
        made.all = [look(0, [5, 5, 5, 5]), look(1000, [5, 9, 13, 13])];
        return [0.25, 0.5, 0.75, 1].map((share) => made.quantile("h", share, 60));
    }"""
    assert opened().evaluate(counted) == [1.5, 2, 3, 4]


def test_a_prompt_is_tried_with_the_keyboard_alone(opened: Open) -> None:
    page = opened()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # skips to the prompt
    page.keyboard.press("Tab")
    page.keyboard.press("Control+A")
    page.keyboard.type("hello stop sign")
    page.keyboard.press("Tab")
    page.keyboard.type("7")
    page.keyboard.press("Tab")
    page.keyboard.type("0")
    page.keyboard.press("Enter")
    page.wait_for_selector("#answer[aria-busy=false]:not(:empty)")
    expect(page.locator("#timing")).to_contain_text("7 tokens, TTFT ")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    first = page.text_content("#answer")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#answer[aria-busy=false]")).to_have_text(first or "")  # of temperature 0


def test_a_refused_prompt_shows_the_sentence(opened: Open) -> None:
    page = opened()
    page.fill("#text", "x " * 2000)
    page.click("#run")
    page.wait_for_selector("#answer strong")
    assert "maximum context length is 256 tokens" in (page.text_content("#answer") or "")


def test_a_moment_is_read_off_a_chart_with_the_keyboard(opened: Open) -> None:
    page = opened()
    page.wait_for_timeout(1500)
    page.focus("#batch .plot")
    page.keyboard.press("ArrowLeft")
    assert re.match(r"\d+ s ago: running 0", page.text_content("#batch .tip") or "")
    assert page.is_visible("#batch .cursor")
    page.keyboard.press("Escape")
    assert not page.is_visible("#batch .cursor")
    assert page.get_attribute("#batch .plot", "aria-label") == "Batch: running 0"


@pytest.mark.parametrize("size", [PHONE, (820, 1100), DESKTOP])
def test_nothing_sticks_out(opened: Open, size: tuple[int, int]) -> None:
    page = opened(size)
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    for selector in ("#run", "#text", ".plot"):
        box = page.locator(selector).first.bounding_box()
        assert box
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= size[0]


def test_it_is_light_and_dark(opened: Open, tmp_path: Path) -> None:
    def ground(scheme: str) -> int:
        page = opened(scheme=scheme)
        page.screenshot(path=tmp_path / f"{scheme}.png", full_page=True)
        colour = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)))

    assert ground("dark") < 100 < 650 < ground("light")


def test_a_stalled_engine_is_told_and_so_is_its_return(opened: Open, tiny: Served) -> None:
    page = opened()
    engine = engine_of(tiny.process.pid)
    os.kill(engine, signal.SIGSTOP)
    try:
        page.wait_for_selector("[data-state=down]", timeout=6000)
        assert "heartbeat stopped" in (page.text_content("#state") or "")
    finally:
        os.kill(engine, signal.SIGCONT)
    page.wait_for_selector("[data-state=ready]", timeout=6000)
    wait_for(lambda: httpx.get(f"{tiny.url}/health").status_code == 200)


def test_every_metric_that_it_names_exists(tiny: Served) -> None:
    names = {name for name, _ in scrape(tiny)}
    told = httpx.get(tiny.url).text
    assert all((ASSETS / name).read_text() in told for name in ("page.css", "page.js"))
    # Histograms are named whole; a name that ends in "_" is put together.
    asked = {name for name in re.findall(r"dualpace_\w+", told) if not name.endswith("_")}
    assert len(asked) > 15
    assert {name for name in asked if name not in names and f"{name}_count" not in names} == set()
