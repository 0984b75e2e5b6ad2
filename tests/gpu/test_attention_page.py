from benchmarks.attention_page import PAGE, page


def test_the_page_shows_what_was_measured():
    text = PAGE.read_text(encoding="utf-8")
    assert "| 32/8 heads of 128 | 1 row, 8k |" in text
    assert page(text) == text
