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

    def workspace(self) -> torch.Tensor:
        """A workspace of NaNs with the batch's tasks in it."""
        size = self.cubin.constant("dp_attention_workspace_bytes")
        workspace = torch.full((size,), 0xFF, dtype=torch.uint8, device="cuda")
        self.cubin.launch("dp_attention_tasks", (len(self.batch.pools),), self.batch.step, workspace)
        return workspace

    def partials(self, group: int, workspace: torch.Tensor) -> None:
        """Attend the group's tasks."""
        batch = self.batch
        grid = (self.ctas, batch.plan.model.kv_heads)
        self.cubin.launch("dp_attention", grid, batch.step, group, batch.qkv, batch.pools[group], workspace)

    def merge(self, group: int, workspace: torch.Tensor) -> torch.Tensor:
        """The output [tokens][heads][head_dim]."""
        out = self.batch.poisoned()
        grid = (self.ctas, self.batch.plan.model.heads)
        self.cubin.launch("dp_attention_merge", grid, self.batch.step, group, workspace, out)
        return out

    def attend(self, group: int) -> torch.Tensor:
        """Tasks, partials and merge."""
        workspace = self.workspace()
        self.partials(group, workspace)
        return self.merge(group, workspace)
