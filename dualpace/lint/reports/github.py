"""Findings as annotations of a GitHub workflow run.

GitHub shows ten of a severity for a step, so graver ones come first, and what is beyond ten is one annotation that
counts them and plain lines in the step's log.
"""

from collections.abc import Iterator, Sequence

from dualpace.diagnostic import Diagnostic, Severity
from dualpace.lint.reports import text
from dualpace.lint.runner import Result

LIMIT = 10
_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def report(results: Sequence[Result]) -> str:
    """The workflow commands for `results`, "" if there is nothing to say."""
    return "".join(line for severity in sorted(_COMMANDS, reverse=True) for line in _severity(results, severity))


def _severity(results: Sequence[Result], severity: Severity) -> Iterator[str]:
    found = [(result, d) for result in results for d in result.diagnostics if d.severity == severity]
    shown = found if len(found) <= LIMIT else found[: LIMIT - 1]
    for _, diagnostic in shown:
        yield _annotation(diagnostic)
    if rest := found[len(shown) :]:
        yield f"::{_COMMANDS[severity]} title=dualpace::{len(rest)} more, in the log of this step\n"
        for result, diagnostic in rest:
            yield text.finding(diagnostic, result.document.lines())


def _annotation(diagnostic: Diagnostic) -> str:
    span = diagnostic.span
    properties = {
        "file": span.file,
        "line": span.line,
        "endLine": span.end_line,
        "col": span.col,
        "endColumn": span.end_col,
        "title": f"{diagnostic.id} {diagnostic.slug}",
    }
    listed = ",".join(f"{name}={_escaped(str(value), ':,')}" for name, value in properties.items())
    message = "\n".join(text.printable(part) for part in (diagnostic.message, diagnostic.help) if part)
    return f"::{_COMMANDS[diagnostic.severity]} {listed}::{_escaped(message)}\n"


def _escaped(value: str, separators: str = "") -> str:
    return "".join(f"%{ord(c):02X}" if c in f"%\r\n{separators}" else c for c in value)
