from benchmarks.scheduler_page import PAGE, page


def test_the_page_shows_what_was_measured():
    text = PAGE.read_text(encoding="utf-8")
    assert "| 256 rows |" in text
    assert "| top_p 0.9 |" in text
    assert page(text) == text
