"""Seeded random weights of a plan's true shape, for measuring without a checkpoint."""

import hashlib
from math import prod

import numpy as np
import torch

from dualpace.model.names import sources, stacked_shape
from dualpace.model.weights import DTYPES, Progress
from dualpace.plan.plan import Plan

_NORM_SPREAD = 0.1
# Values drawn at a time: few enough to be scaled while they are in cache.
_CHUNK = 2**21


def random_weights(plan: Plan, progress: Progress | None = None, device: str = "cpu") -> dict[str, torch.Tensor]:
    """The weight table of `plan` filled from `plan.weights.seed`; a tensor depends on its name and the seed alone.

    A matrix has variance 1 / inputs and a norm weight is near one, so activations keep unit variance through any depth.
    A GPU draws other values than the CPU, and each kind of GPU may draw its own.
    """
    model = plan.model
    dtype = DTYPES[model.dtype]
    shapes = {name: stacked_shape(parts) for name, parts in sources(model).items()}
    total = sum(prod(shape) for shape in shapes.values()) * dtype.itemsize
    weights = {}
    done = 0
    for name, shape in shapes.items():
        if name.endswith("norm"):
            center, deviation = 1.0 - model.norm_offset, _NORM_SPREAD
        else:
            center, deviation = 0.0, (shape[1] if len(shape) == 2 else model.hidden) ** -0.5
        draw = _uniform if device == "cpu" else _uniform_on_gpu
        weights[name] = draw(_seed(f"{plan.weights.seed}:{name}"), shape, dtype, center, deviation)
        done += weights[name].nbytes
        if progress:
            progress(done, total)
    if model.tie_embeddings:
        weights["head"] = weights["embed"]
    return weights


def _seed(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=16).digest(), "little")


def _uniform_on_gpu(
    seed: int, shape: tuple[int, ...], dtype: torch.dtype, center: float, deviation: float
) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed % 2**63)
    half = deviation * 3**0.5
    return torch.empty(shape, dtype=dtype, device="cuda").uniform_(center - half, center + half, generator=generator)


def _uniform(seed: int, shape: tuple[int, ...], dtype: torch.dtype, center: float, deviation: float) -> torch.Tensor:
    """Uniform values with the given mean and standard deviation, four from each 64-bit word of the generator."""
    generator = np.random.SFC64(seed)
    step = deviation * 3**0.5 / 2**15
    values = torch.empty(shape, dtype=dtype)
    for chunk in torch.split(values.view(-1), _CHUNK):
        words = generator.random_raw(-(-len(chunk) // 4))
        chunk.copy_(torch.from_numpy(words.view(np.int16)[: len(chunk)])).mul_(step)
        if center:
            chunk.add_(center)
    return values
