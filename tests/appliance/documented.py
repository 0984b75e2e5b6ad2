"""The table of docs/metrics.md, from what `/metrics` says.

`python -m tests.appliance.documented` writes it again; nothing else does.
"""

import tempfile
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from dualpace.appliance.deployment import load
from dualpace.appliance.metrics import metrics_text
from dualpace.appliance.tally import Tally
from tests.appliance.bundles import write_bundle
from tests.appliance.fake_ring import FakeRing

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
HEAD = "| --- | --- | --- | --- |\n"


def table() -> str:
    """A row a name."""
    with tempfile.TemporaryDirectory() as folder:
        deployment = load(write_bundle(Path(folder) / "bundle"))
    text = metrics_text(deployment, FakeRing().status(), True, Tally().totals())
    families = list(text_string_to_metric_families(text))

    def name(family) -> str:
        return family.name + ("_total" if family.type == "counter" else "")

    aliases: dict[str, list[str]] = {}
    for family in families:
        if family.name.startswith("vllm:"):
            aliases.setdefault(family.documentation.removeprefix("As ").removesuffix("."), []).append(name(family))
    rows = []
    for family in families:
        if not family.name.startswith("vllm:"):
            labels = sorted({label for sample in family.samples for label in sample.labels} - {"model_name"})
            others = ", ".join(f"`{alias}`" for alias in aliases.get(name(family), ()))
            rows.append(f"| `{name(family)}` | {', '.join(labels)} | {others} | {family.documentation} |\n")
    return "".join(rows)


def main() -> None:
    """Write the table into the page."""
    before, head, _ = PAGE.read_text(encoding="utf-8").partition(HEAD)
    PAGE.write_text(before + head + table(), encoding="utf-8")


if __name__ == "__main__":
    main()
