"""The attention kernels of a layer, launched on a batch."""

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from dualpace.plan.structs import Route

from .batch import Batch

if TYPE_CHECKING:
    from dualpace.engine.device import Cubin

ROUTES = (Route.SPLIT, Route.WORKQUEUE, Route.FLASHINFER)


def kernel_of(route: Route) -> str:
    """What does the tasks of a route."""
    return "dp_attention_flashinfer" if route is Route.FLASHINFER else "dp_attention"


@dataclass(frozen=True)
class Partials:
    """Partial results by task, poison at first: `out` [tasks][heads][head_dim], `lse` [tasks][heads] of a slice."""

    out: torch.Tensor
    lse: torch.Tensor


@dataclass(frozen=True)
class Kernels:
    """Kernels of `cubin` on `batch`. `ctas` is the size of the grids, which no result may depend on."""

    cubin: "Cubin"
    batch: Batch
    ctas: int = 23
    route: Route = Route.SPLIT
    shares: int = 37
    split_tokens: int | None = None  # the plan's

    def append(self, group: int, magnitude: float = 1.0) -> None:
        """Rotate the batch's queries in place, and its keys and values into the group's pool."""
        batch = self.batch
        angles = torch.full((batch.tokens, batch.plan.model.head_dim), torch.nan, device="cuda")
        self.cubin.launch("dp_rope_angles", (self.ctas,), batch.step, batch.frequencies[group], magnitude, angles)
        operands = (angles, batch.q_norm, batch.k_norm, batch.qkv, batch.pools[group])
        self.cubin.launch("dp_kv_append", (self.ctas,), batch.step, group, *operands)

    @property
    def slices(self) -> int:
        """Parts of the heads that have tasks of their own."""
        return self.cubin.constant("dp_attention_slices")

    @property
    def slice_heads(self) -> int:
        """Heads of a slice."""
        return self.cubin.constant("dp_attention_slice_heads")

    def tasks(self) -> torch.Tensor:
        """The batch's tasks, for every group."""
        tasks = torch.full(
            (self.cubin.constant("dp_attention_tasks_bytes") // 4,), -1, dtype=torch.int32, device="cuda"
        )
        self.list_tasks(tasks)
        return tasks

    def task_ranges(self, tasks: torch.Tensor) -> list[list[range]]:
        """The first group's tasks of every slice of every token: [tokens][slices]."""
        count, _, _, *first = tasks[: 4 + self.batch.tokens].tolist()
        return [
            [range(piece * count + begin, piece * count + end) for piece in range(self.slices)]
            for begin, end in pairwise(first)
        ]

    def partials(self) -> Partials:
        """Room for the partial results of any step."""
        tasks, model = self.cubin.constant("dp_attention_max_tasks"), self.batch.plan.model
        lse = torch.full((tasks, self.slice_heads), torch.nan, device="cuda")
        return Partials(lse[:, :, None].repeat(1, 1, model.head_dim), lse)

    def attend(self, group: int) -> torch.Tensor:
        """Attention of the group, from the step to the output [tokens][heads][head_dim]."""
        tasks, partials, out = self.tasks(), self.partials(), self.batch.poisoned()
        self.attention(group, self.batch.pools[group], tasks, partials, out)
        return out

    def attend_apart(self, group: int) -> torch.Tensor:
        """The same with every task's result left partial and merged by a kernel of its own."""
        tasks, partials, out = self.tasks(), self.partials(), self.batch.poisoned()
        self.attention(group, self.batch.pools[group], tasks, partials, None)
        self.merge(group, tasks, partials, out)
        return out

    def list_tasks(self, tasks: torch.Tensor) -> None:
        """dp_attention_tasks."""
        grid = (len(self.batch.pools),)
        split, shares = self.split_tokens or self.batch.plan.attention.split_tokens, self.shares
        self.cubin.launch("dp_attention_tasks", grid, self.batch.step, int(self.route), split, shares, shares, tasks)

    def attention(
        self,
        group: int,
        pool: torch.Tensor,
        tasks: torch.Tensor,
        partials: Partials,
        out: torch.Tensor | None,
        overlap: bool = False,
    ) -> None:
        """The route's kernel over `pool`; with `overlap` what is in front of it did not list the tasks."""
        operands = (self.batch.qkv, pool, partials.out, partials.lse, out)
        step = self.batch.step
        self.cubin.launch(kernel_of(self.route), (self.ctas,), step, group, tasks, *operands, overlap=overlap)

    def merge(self, group: int, tasks: torch.Tensor, partials: Partials, out: torch.Tensor) -> None:
        """dp_attention_merge."""
        operands = (partials.out, partials.lse, out)
        self.cubin.launch("dp_attention_merge", (self.ctas,), self.batch.step, group, tasks, *operands)
