"""A publisher on a card, `device.cu`, that CPU workers answer."""

import ctypes
from pathlib import Path

import torch

from dualpace.engine.workers import Workers

from .compiled import DEVICE

PATIENCE_NS = 1_000_000_000
# More than a publisher's own memory takes.
STATE = 1 << 20


class DevicePublisher:
    """`drive` gives the first `many` of the blocks to all workers and waits for their answers, for a second."""

    def __init__(self, folder: Path, workers: Workers, count: int, query: torch.Tensor, blocks: torch.Tensor) -> None:
        from dualpace.engine.device import Cubin, mapped

        self._cubin = Cubin(folder / DEVICE)
        self._mapped = mapped(workers.address, workers.size)
        state = torch.zeros(2, STATE, dtype=torch.uint8, device="cuda")
        self._query, self._blocks, self._found = (
            query.cuda(),
            blocks.cuda(),
            torch.zeros(3, dtype=torch.int64, device="cuda"),
        )
        self._out = torch.empty(len(blocks), *query.shape, device="cuda")
        self._lse = torch.empty(len(blocks), len(query), device="cuda")
        self._before = (self._mapped.__enter__(), *state, count, self._query, self._blocks)
        self._after = (self._out, self._lse, ctypes.c_int64(PATIENCE_NS), self._found)

    def drive(self, many: int) -> float:
        """Seconds by the GPU's clock. Raises RuntimeError if a worker was late."""
        self._cubin.launch("drive", (1,), *self._before, many, *self._after)
        nanoseconds, items, withdrawn = self._found.tolist()
        if withdrawn:
            raise RuntimeError(f"{withdrawn} of {items} items were not answered")
        return nanoseconds / 1e9

    def merged(self, items: int) -> torch.Tensor:
        """The output over the first `items` items of the last call: [head, element]."""
        weights = (self._lse[:items] - self._lse[:items].max(0).values).exp()[..., None]
        return ((weights * self._out[:items]).sum(0) / weights.sum(0)).cpu()

    def close(self) -> None:
        """The workers may go."""
        self._mapped.__exit__(None, None, None)
