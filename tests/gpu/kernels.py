"""The attention kernels of a layer, launched on a batch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .batch import Batch

if TYPE_CHECKING:
    from .device import Cubin


@dataclass(frozen=True)
class Kernels:
    """Kernels of `cubin` on `batch`. `ctas` is the first dimension of the grids, which no result may depend on."""

    cubin: "Cubin"
    batch: Batch
    ctas: int = 23

    def append(self, group: int, magnitude: float = 1.0) -> None:
        """Rotate the batch's queries in place, and its keys and values into the group's pool."""
        batch = self.batch
        self.cubin.launch(
            "dp_kv_append",
            (self.ctas,),
            batch.step,
            group,
            batch.frequencies[group],
            magnitude,
            batch.q_norm,
            batch.k_norm,
            batch.qkv,
            batch.pools[group],
        )

    def tasks(self) -> torch.Tensor:
        """The batch's tasks, for every group."""
        tasks = torch.full(
            (self.cubin.constant("dp_attention_tasks_bytes") // 4,), -1, dtype=torch.int32, device="cuda"
        )
        self.cubin.launch("dp_attention_tasks", (len(self.batch.pools),), self.batch.step, tasks)
        return tasks

    def partials(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Partial outputs [tasks][heads][head_dim] and LSE [tasks][heads] that nobody has written yet."""
        tasks, model = self.cubin.constant("dp_attention_max_tasks"), self.batch.plan.model
        lse = torch.full((tasks, model.heads), torch.nan, device="cuda")
        return lse[:, :, None].repeat(1, 1, model.head_dim), lse

    def attend(self, group: int) -> torch.Tensor:
        """Attention of the group, from the step to the output [tokens][heads][head_dim]."""
        batch, tasks = self.batch, self.tasks()
        partial, lse = self.partials()
        grid = (self.ctas, batch.plan.model.kv_heads)
        self.cubin.launch("dp_attention", grid, batch.step, group, tasks, batch.qkv, batch.pools[group], partial, lse)
        return self.merge(group, tasks, partial, lse)

    def merge(self, group: int, tasks: torch.Tensor, partial: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        """The output [tokens][heads][head_dim] of partial results."""
        out = self.batch.poisoned()
        grid = (self.ctas, self.batch.plan.model.heads)
        self.cubin.launch("dp_attention_merge", grid, self.batch.step, group, tasks, partial, lse, out)
        return out
