"""The golden pairs, which the package carries as examples.

`ID-slug/bad.yaml` with its report `bad.txt`, and `good.yaml`, which the rule lets pass.
"""

from pathlib import Path

from dualpace.lint.reports.text import report
from dualpace.lint.runner import Result, lint_document
from dualpace.spec.compose import compose

EXAMPLES = Path(__file__).parents[2] / "dualpace" / "lint" / "examples"
CASES = sorted(folder.name for folder in EXAMPLES.iterdir())

# Whatever a checkout has made of them: git keeps no modes but that of executables.
for secret in ("DP703-empty-key-file/keys.txt", "DP710-key-file-form/keys.txt", "DP710-key-file-form/limited.txt"):
    (EXAMPLES / secret).chmod(0o600)
(EXAMPLES / "DP704-readable-key-file" / "keys.txt").chmod(0o644)


def lint(case: str, name: str) -> Result:
    """The result for one of `case`'s specs, named without its folder so that reports are the same everywhere."""
    file = EXAMPLES / case / name
    return lint_document(compose(file.read_bytes(), name), file.parent)


def bad_report(case: str) -> str:
    """What `dualpace lint` says of `case`'s bad spec."""
    return report([lint(case, "bad.yaml")])
