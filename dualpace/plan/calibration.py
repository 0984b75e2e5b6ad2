"""Measured constants of attention's cost model: files that `dualpace calibrate` writes, and those of known targets.

Known ones are `calibrations/TARGET.json`; a spec may name one of its own in `target.calibration`.
"""

import math
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from dualpace.frozen import Frozen
from dualpace.plan.error import PlanError
from dualpace.plan.plan import DTYPE_BYTES, AttentionPolicy, DType, KernelCost, Model, Target

FIELD = ("target", "calibration")
KNOWN = files("dualpace") / "plan" / "calibrations"
# Where no file is there for a target.
NEAREST = "h200"


class CalibratedLayer(Frozen):
    """The constants of attention's kernels for one shape of layer; the rest as in AttentionPolicy."""

    head_dim: int
    gqa_ratio: int
    kv_heads: int
    page_size: int
    dtype: DType
    ctas: int
    own: KernelCost
    flashinfer_ctas: int = 0
    flashinfer: KernelCost | None = None
    flashinfer_gain: float = 0.0

    def fits(self, model: Model) -> bool:
        """Whether the model's layers have this shape. KV heads and pages hardly matter to a key's cost."""
        return (self.head_dim, self.gqa_ratio, self.dtype) == (model.head_dim, model.gqa_ratio, model.dtype)

    def distance(self, model: Model) -> tuple[float, int]:
        """How far it is from the model's layers: head size first, then the ratio, where any larger one is nearer."""
        ratio = self.gqa_ratio - model.gqa_ratio
        return abs(math.log2(self.head_dim / model.head_dim)), ratio if ratio >= 0 else 1000 - ratio


class Calibration(Frozen):
    """A file: what was measured, on which target and machine."""

    target: str
    read_bandwidth: float
    machine: dict[str, str]
    layers: Annotated[tuple[CalibratedLayer, ...], Field(min_length=1)]


def resolve_policy(file: Path | None, model: Model, target: Target) -> AttentionPolicy:
    """The policy of `target`, from `file` or, without one, from what is known of it. Raises PlanError."""
    known = KNOWN / f"{target.name}.json"
    if file is None:
        calibration = _known(target.name if known.is_file() else NEAREST)
    else:
        calibration = read_calibration(file)
        if calibration.target != target.name:
            raise PlanError(
                FIELD, f"{file} was measured on {calibration.target}, not on {target.name}", "calibrate on the target"
            )
    layer = min(calibration.layers, key=lambda layer: layer.distance(model))
    where = f"{calibration.target} with heads of {layer.head_dim}, {layer.gqa_ratio} to a KV head, in {layer.dtype}"
    measured = layer.fits(model) and calibration.target == target.name
    bytes_ = (model.head_dim * model.element_bytes) / (layer.head_dim * DTYPE_BYTES[layer.dtype])
    pace = calibration.read_bandwidth / target.read_bandwidth
    return AttentionPolicy(
        source=f"measured on {where}" if measured else f"scaled from {where}",
        measured=measured,
        ctas=layer.ctas,
        own=_scaled(layer.own, bytes_, pace),
        flashinfer_ctas=layer.flashinfer_ctas,
        flashinfer=layer.flashinfer and _scaled(layer.flashinfer, bytes_, pace),
        flashinfer_gain=layer.flashinfer_gain if measured else 0.0,
    )


def read_calibration(file: Path) -> Calibration:
    """The calibration in `file`. Raises PlanError."""
    try:
        return Calibration.model_validate_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(
            FIELD, f"{file}: {error.strerror or error}", "correct it, or run `dualpace calibrate`"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise PlanError(FIELD, f"{file}: {where}: {first['msg']}", "run `dualpace calibrate` again") from error


@cache
def _known(target: str) -> Calibration:
    return Calibration.model_validate_json((KNOWN / f"{target}.json").read_text(encoding="utf-8"))


def _scaled(cost: KernelCost, key_bytes: float, pace: float) -> KernelCost:
    """For keys `key_bytes` times as long, at a memory that takes `pace` times as long for a byte."""
    return cost.model_copy(update={"key": cost.key * key_bytes * pace, "tail_key": cost.tail_key * key_bytes})
