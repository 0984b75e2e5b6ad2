"""Colours that a terminal lays over the text report."""

from typing import ClassVar

from rich.highlighter import RegexHighlighter
from rich.theme import Theme

STYLES = Theme(
    {
        "dp.error": "bold red",
        "dp.warning": "bold yellow",
        "dp.note": "bold cyan",
        "dp.place": "bold",
        "dp.help": "green",
    }
)


class Highlighter(RegexHighlighter):
    """Marks severities, places, carets and remedies."""

    base_style = "dp."
    highlights: ClassVar[list[str]] = [
        r"(?m)^(?P<place>\S+:\d+:\d+:) (?:(?P<error>error)|(?P<warning>warning)|(?P<note>note)) ",
        r"(?m)^ {4} *(?P<error>\^+)$",
        r"(?m)^  (?P<help>help:)",
    ]
