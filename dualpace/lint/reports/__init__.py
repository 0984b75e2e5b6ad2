"""Reports: functions from lint results to the text of a file."""

from collections.abc import Callable, Sequence
from importlib import import_module

from dualpace.lint.runner import Result

FORMATS = ("text", "json", "github", "sarif")


def report(format_: str, results: Sequence[Result]) -> str:
    """The report on `results` in one of FORMATS. What only other formats need is not imported."""
    write: Callable[[Sequence[Result]], str] = import_module(f"{__name__}.{format_}").report
    return write(results)
