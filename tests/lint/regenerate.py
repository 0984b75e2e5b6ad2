"""Rewrites the golden reports from what the linter says now: `python -m tests.lint.regenerate`; review the diff."""

from .corpus import CASES, EXAMPLES, bad_report

for case in CASES:
    (EXAMPLES / case / "bad.txt").write_text(bad_report(case), encoding="utf-8")
