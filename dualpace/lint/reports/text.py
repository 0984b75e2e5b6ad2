"""Findings for people: place, message, the source line with the place marked, and the remedy."""

from collections.abc import Sequence

from dualpace.diagnostic import Diagnostic
from dualpace.lint.runner import Result


def report(results: Sequence[Result]) -> str:
    """The findings of `results` in their order, "" if there are none."""
    return "".join(finding(d, result.document.lines()) for result in results for d in result.diagnostics)


def finding(diagnostic: Diagnostic, lines: list[str]) -> str:
    """One finding in `lines`, the lines of its file."""
    span = diagnostic.span
    place = f"{span.file}:{span.line}:{span.col}"
    head = f"{place}: {diagnostic.severity} {diagnostic.id} {diagnostic.slug}: {diagnostic.message}"
    source = lines[span.line - 1]
    text = printable(head) + "\n"
    if source.strip():
        end = span.end_col if span.end_line == span.line else len(source) + 1
        text += f"    {printable(source)}\n    {' ' * (span.col - 1)}{'^' * max(1, end - span.col)}\n"
    return text + (f"  help: {printable(diagnostic.help)}\n" if diagnostic.help else "")


def printable(text: str) -> str:
    """`text` on one line, of the same width, without what a terminal might obey."""
    return "".join(c if c.isprintable() else " " for c in text)
