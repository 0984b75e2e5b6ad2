"""Plans of the example specs, as they are or with some of their values changed."""

from pathlib import Path
from typing import Any

import yaml

from dualpace.plan.plan import Plan
from dualpace.plan.resolve import resolve
from dualpace.spec.models import Spec

# Relative paths start here, so that a plan is the same whether the quickstart's model is there or not.
NOWHERE = Path("/nowhere/specs")
SPECS = Path(__file__).parents[1] / "specs"


def example(name: str, **changes: dict[str, Any]) -> Plan:
    """The plan of `specs/<name>.yaml`; `changes` are values of a section, `shape` being that of the model."""
    data = yaml.safe_load((SPECS / f"{name}.yaml").read_text())
    # YAML 1.1, which reads this test's file, has no such number as 1e-6.
    data["model"]["shape"]["norm_eps"] = float(data["model"]["shape"]["norm_eps"])
    for section, values in changes.items():
        place = data["model"]["shape"] if section == "shape" else data.setdefault(section, {})
        place |= values
    return resolve(Spec.model_validate(data), NOWHERE)
