"""The commands in pages on plans and what they print.

`python -m tests.plan.documented` writes the outputs again; nothing else does.
"""

import re
from pathlib import Path

from typer.testing import CliRunner

from dualpace.cli import app

DOCS = Path(__file__).parents[2] / "docs"
PAGE, RECALL_PAGE = DOCS / "plan.md", DOCS / "offload.md"
_EXAMPLE = re.compile(r"```console\n\$ dualpace (?P<arguments>.+)\n(?P<output>(?s:.*?))```\n")


def examples(text: str) -> dict[str, str]:
    """The examples of a page: arguments, output as it stands there."""
    return {found["arguments"]: found["output"] for found in _EXAMPLE.finditer(text)}


def output(arguments: str) -> str:
    """What `dualpace` prints with `arguments`, in a terminal of 100 columns."""
    return CliRunner().invoke(app, arguments.split(), env={"COLUMNS": "100"}).stdout


def main() -> None:
    """Write the outputs into the pages."""

    def rewritten(found: re.Match[str]) -> str:
        return f"```console\n$ dualpace {found['arguments']}\n{output(found['arguments'])}```\n"

    for page in (PAGE, RECALL_PAGE):
        page.write_text(_EXAMPLE.sub(rewritten, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
