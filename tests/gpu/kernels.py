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
        size = self.cubin.constant("dp_attention_tasks_bytes") // 4
        tasks = torch.full((size,), -1, dtype=torch.int32, device="cuda")
        self.list_tasks(tasks)
        return tasks

    def partials(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Partial outputs [tasks][heads][head_dim] and LSE [tasks][heads] that nobody has written yet."""
        tasks, model = self.cubin.constant("dp_attention_max_tasks"), self.batch.plan.model
        lse = torch.full((tasks, model.heads), torch.nan, device="cuda")
        return lse[:, :, None].repeat(1, 1, model.head_dim), lse

    def attend(self, group: int) -> torch.Tensor:
        """Attention of the group, from the step to the output [tokens][heads][head_dim]."""
        tasks, (partial, lse), out = self.tasks(), self.partials(), self.batch.poisoned()
        self.attention(group, self.batch.pools[group], tasks, partial, lse)
        self.merge(group, tasks, partial, lse, out)
        return out

    def list_tasks(self, tasks: torch.Tensor) -> None:
        """dp_attention_tasks."""
        self.cubin.launch("dp_attention_tasks", (len(self.batch.pools),), self.batch.step, tasks)

    def attention(
        self, group: int, pool: torch.Tensor, tasks: torch.Tensor, partial: torch.Tensor, lse: torch.Tensor
    ) -> None:
        """dp_attention over `pool`."""
        grid = (self.ctas, self.batch.plan.model.kv_heads)
        self.cubin.launch("dp_attention", grid, self.batch.step, group, tasks, self.batch.qkv, pool, partial, lse)

    def merge(
        self, group: int, tasks: torch.Tensor, partial: torch.Tensor, lse: torch.Tensor, out: torch.Tensor
    ) -> None:
        """dp_attention_merge."""
        grid = (self.ctas, self.batch.plan.model.heads)
        self.cubin.launch("dp_attention_merge", grid, self.batch.step, group, tasks, partial, lse, out)
