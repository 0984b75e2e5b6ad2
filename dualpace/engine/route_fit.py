"""Constants of attention's cost model from measured layers: a pure function."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dualpace.plan.attention_cost import RouteWork, route_seconds
from dualpace.plan.plan import KernelCost

# Which roof a batch is under follows from the constants: they are fitted anew until that no longer changes.
ROUNDS = 50
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
    return min((cost for cost in _descents(samples)), key=lambda cost: relative_error(cost, samples))


def relative_error(cost: KernelCost, samples: Sequence[Measured]) -> float:
    """Root of the mean squared relative error of `cost` over `samples`."""
    errors = [route_seconds(cost, sample.work) / sample.seconds - 1 for sample in samples]
    return float(np.sqrt(np.mean(np.square(errors))))


def _descents(samples: Sequence[Measured]) -> Iterator[KernelCost]:
    """Fits from several first guesses of which batches wait for one CTA: those whose share of the keys is largest."""
    shares = np.array([sample.work.chain / sample.work.keys for sample in samples])
    for guess in np.quantile(shares, (0.0, 0.25, 0.5, 0.75, 1.0)):
        chained = shares > guess
        for _ in range(ROUNDS):
            cost = _with_roofs(samples, chained)
            yield cost
            now = np.array([s.work.chain * cost.chain_key > s.work.keys * cost.key for s in samples])
            if np.array_equal(now, chained):
                break
            chained = now


def _with_roofs(samples: Sequence[Measured], chained: npt.NDArray[np.bool_]) -> KernelCost:
    """The best constants if just the `chained` samples wait for one CTA."""
    rows = [
        (1, work.keys * (not waits), work.chain * waits, work.tasks, work.partials, work.depth)
        for (work, _), waits in zip(samples, chained, strict=True)
    ]
    features = np.array(rows, dtype=np.float64) / np.array([[sample.seconds] for sample in samples])
    constants = _nonnegative(features)
    return KernelCost(**dict(zip(_UNKNOWNS, constants.tolist(), strict=True)))


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
