"""Constants of attention's cost model from measured layers: a pure function."""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dualpace.plan.attention_cost import RouteWork, route_seconds
from dualpace.plan.plan import KernelCost

_UNKNOWNS = tuple(KernelCost.model_fields)
Array = npt.NDArray[np.float64]


class Measured(NamedTuple):
    """A layer's work on a route, and its seconds."""

    work: RouteWork
    seconds: float


def fit(samples: Sequence[Measured]) -> KernelCost:
    """The constants, none below zero, with the least squared relative error over `samples`.

    Raises ValueError for fewer samples than constants.
    """
    if len(samples) < len(_UNKNOWNS):
        raise ValueError(f"{len(samples)} measurements cannot fix {len(_UNKNOWNS)} constants: measure more batches")
    seconds = np.array([[sample.seconds] for sample in samples])
    features = np.array([(1, *sample.work) for sample in samples], dtype=np.float64) / seconds
    return KernelCost(**dict(zip(_UNKNOWNS, _nonnegative(features).tolist(), strict=True)))


def relative_error(cost: KernelCost, samples: Sequence[Measured]) -> float:
    """Root of the mean squared relative error of `cost` over `samples`."""
    errors = [route_seconds(cost, sample.work) / sample.seconds - 1 for sample in samples]
    return float(np.sqrt(np.mean(np.square(errors))))


def _nonnegative(features: Array) -> Array:
    """The x >= 0 with the least |features x - 1|: the best of the unconstrained ones over all subsets of columns."""
    scale = np.linalg.norm(features, axis=0)
    best, least = np.zeros(len(scale)), float("inf")
    used = np.flatnonzero(scale)
    for count in range(1, len(used) + 1):
        for columns in map(list, combinations(used, count)):
            some, *_ = np.linalg.lstsq(features[:, columns] / scale[columns], np.ones(len(features)), rcond=None)
            residual = float(np.linalg.norm(features[:, columns] / scale[columns] @ some - 1))
            if (some >= 0).all() and residual < least:
                best, least = np.zeros(len(scale)), residual
                best[columns] = some / scale[columns]
    return best
