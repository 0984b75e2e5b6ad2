"""Plans small enough that items, places and rows are used up and used again within a few steps."""

from pathlib import Path

from dualpace.plan.plan import Offload
from tests.scheduler.plans import small_plan

HERE = Path(__file__).parent


def cooperating(name: str, *, slow_rows: int, **sizes):
    """A plan whose KV may be in host memory, and which CPU workers attend to there."""
    base = small_plan(name, slow_rows=slow_rows, max_batch=2 * slow_rows, **sizes)
    offload = Offload(mode="cooperative", host_budget=1, sparse_blocks=0, sinks=1, recent=2, cache_blocks=8)
    return base.model_copy(update={"offload": offload})


SMALL = cooperating("small", slow_rows=4, page_size=8, context=1024)
