import pytest

from benchmarks import (
    attention_page,
    cpu_attention_page,
    cpu_workers_page,
    engine_page,
    frontend_page,
    linear_page,
    load_page,
    offload_page,
    prefill_page,
    readme_page,
    scheduler_page,
    side_page,
)
from benchmarks.pages import result

# Page, and the beginnings of lines without which a table is missing.
PAGES = {
    attention_page: ("32/8 heads of 128 | 1 row, 8k", "1 row, 8k | workqueue", "uniform | 1"),
    cpu_attention_page: ("128 | 8 | 16", "256 | 1 | 1"),
    cpu_workers_page: ("1 | 10.8", "15 | 100.9"),
    engine_page: ("1 | 1,024", "8 | 1,024 | 0.61", "stopped", "checkpoint | 16.1", "backed off"),
    frontend_page: ("under 1% of a core at rest", "ours", "orjson, of a dict", "uvicorn, h11, uvloop"),
    linear_page: ("gate_up", "a layer"),
    load_page: ("tokens/s | seen", "28,427 | 28,433"),
    prefill_page: ("32 rows of 1,024 at once", "32k row in 16 chunks of 2,048"),
    readme_page: ("1 | 1,024", "128 | 1,024", "quiet | vLLM", "28 busy threads | DualPace"),
    side_page: ("24 | 28 | vLLM | busy cores", "256 clients | 0 | DualPace", "24/28/shared | 146.44"),
    scheduler_page: ("256 rows", "top_p 0.9"),
    offload_page: (
        "6,000 | 5%",
        "64 KiB from the host",
        "8 KiB from the host",
        "64 KiB to the host",
        "12 | 131,072",
        "1.25",
    ),
}


@pytest.mark.parametrize("module", PAGES, ids=lambda module: module.PAGE.name + "-" + module.__name__)
def test_a_page_shows_what_was_measured(module):
    text = module.PAGE.read_text(encoding="utf-8")
    assert [line for line in PAGES[module] if f"\n| {line} |" not in text] == []
    assert module.page(text) == text


def test_the_plot_beside_vllm_shows_what_was_measured():
    drawn = side_page.PICTURE.read_text(encoding="utf-8")
    assert "beside 28 threads" in drawn
    assert drawn == side_page.drawn(result(side_page.NAME))


def test_the_plot_shows_what_was_measured():
    drawn = readme_page.PICTURE.read_text(encoding="utf-8")
    assert "at 128 rows" in drawn
    assert drawn == readme_page.drawn(result(readme_page.NAME))
