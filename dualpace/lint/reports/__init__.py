"""Reports: functions from lint results to the text of a file."""

from collections.abc import Callable, Sequence

from dualpace.lint.reports import github, json, sarif, text
from dualpace.lint.runner import Result

REPORTS: dict[str, Callable[[Sequence[Result]], str]] = {
    "text": text.report,
    "json": json.report,
    "github": github.report,
    "sarif": sarif.report,
}
