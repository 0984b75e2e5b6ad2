"""The rendered files of three specs, as they were last reviewed.

`python -m tests.render.golden` writes them again; nothing else does.
"""

from pathlib import Path

from dualpace.render.sources import TEMPLATES, render
from tests.plans import example

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("quickstart", "llama-3.1-8b-h200", "qwen2.5-7b-a100")


def seams(name: str) -> dict[str, str]:
    """The files of spec `name` that are rendered, not copied."""
    return {path: text for path, text in render(example(name)).items() if (TEMPLATES / f"{path}.j2").is_file()}


def main() -> None:
    """Write the golden files."""
    for name in NAMES:
        for path, text in seams(name).items():
            file = GOLDEN / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
