"""Findings for programs: one JSON document."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from dualpace.lint.runner import Result


def report(results: Sequence[Result]) -> str:
    """`{"diagnostics": [...]}`; lines and columns count from 1, `end_col` is the column after the last."""
    found = [
        {**asdict(diagnostic), "severity": str(diagnostic.severity)}
        for result in results
        for diagnostic in result.diagnostics
    ]
    return json.dumps({"diagnostics": found}, indent=2) + "\n"
