"""The kernels of prefill, launched on a batch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .batch import Batch

if TYPE_CHECKING:
    from dualpace.engine.device import Cubin


@dataclass(frozen=True)
class Prefill:
    """Kernels of `cubin` on `batch`, whose chunks are cut into `shares`, a CTA each."""

    cubin: "Cubin"
    batch: Batch
    shares: int = 132

    def lists(self) -> torch.Tensor:
        """The tasks of every group."""
        lists = torch.full((self.cubin.constant("dp_prefill_tasks_bytes") // 4,), -1, dtype=torch.int32, device="cuda")
        self.list_tasks(lists)
        return lists

    def partials(self) -> torch.Tensor:
        """Room for partial results, poison at first."""
        return torch.full((self.cubin.constant("dp_prefill_partials_bytes") // 4,), torch.nan, device="cuda")

    def list_tasks(self, lists: torch.Tensor) -> None:
        """dp_prefill_tasks."""
        self.cubin.launch("dp_prefill_tasks", (len(self.batch.pools),), self.batch.step, self.shares, lists)

    def attention(
        self, group: int, pool: torch.Tensor, lists: torch.Tensor, partials: torch.Tensor, out: torch.Tensor
    ) -> None:
        """dp_prefill over `pool`."""
        operands = (lists, self.batch.qkv, pool, partials, out)
        self.cubin.launch("dp_prefill", (self.shares,), self.batch.step, group, *operands)

    def attend(self, group: int, out: torch.Tensor) -> None:
        """The group's chunks, from the step to the output [tokens][heads][head_dim]."""
        self.attention(group, self.batch.pools[group], self.lists(), self.partials(), out)
