from benchmarks.engine_page import PAGE, page


def test_the_page_shows_what_was_measured():
    text = PAGE.read_text(encoding="utf-8")
    assert "| 1 | 1,024 |" in text
    assert "| stopped |" in text
    assert page(text) == text
