"""Findings for code scanning: SARIF 2.1.0, the same text for the same findings."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dualpace import __version__
from dualpace.diagnostic import Diagnostic, Severity, Span
from dualpace.lint.catalogue import CATALOGUE, Entry
from dualpace.lint.runner import Result

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}
_INDEX = {entry.id: index for index, entry in enumerate(CATALOGUE)}


def report(results: Sequence[Result]) -> str:
    """One run over all `results`. Columns count characters; relative paths are those of the source root."""
    run = {
        "tool": {"driver": {"name": "dualpace", "version": __version__, "rules": [_rule(e) for e in CATALOGUE]}},
        "columnKind": "unicodeCodePoints",
        "results": [_result(d) for result in results for d in result.diagnostics],
    }
    log = {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2) + "\n"


def _rule(entry: Entry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "name": "".join(word.capitalize() for word in entry.slug.split("-")),
        "shortDescription": {"text": entry.summary},
        "help": {"text": f"{entry.summary} `dualpace rules {entry.id}` shows an example."},
        "defaultConfiguration": {"level": _LEVELS[entry.severity]},
    }


def _result(diagnostic: Diagnostic) -> dict[str, Any]:
    place = {"artifactLocation": _artifact(diagnostic.span.file), "region": _region(diagnostic.span)}
    found = {
        "ruleId": diagnostic.id,
        "ruleIndex": _INDEX[diagnostic.id],
        "level": _LEVELS[diagnostic.severity],
        "message": {"text": "\n".join(part for part in (diagnostic.message, diagnostic.help) if part)},
        "locations": [{"physicalLocation": place}],
    }
    if diagnostic.fix:
        changes = [
            {"deletedRegion": _region(edit.span), "insertedContent": {"text": edit.text}} for edit in diagnostic.fix
        ]
        change = {"artifactLocation": _artifact(diagnostic.span.file), "replacements": changes}
        found["fixes"] = [{"artifactChanges": [change]}]
    return found


def _artifact(file: str) -> dict[str, str]:
    path = Path(file)
    if path.is_absolute():
        return {"uri": path.as_uri()}
    return {"uri": quote(path.as_posix()), "uriBaseId": "%SRCROOT%"}


def _region(span: Span) -> dict[str, int]:
    return {"startLine": span.line, "startColumn": span.col, "endLine": span.end_line, "endColumn": span.end_col}
