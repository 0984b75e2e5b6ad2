"""Plans small enough that slow rows choose, evict, wait and pause within a few steps."""

from pathlib import Path

from dualpace.plan.plan import LayerGroup, Offload, Rope
from tests.scheduler.plans import small_plan

HERE = Path(__file__).parent
LAYERS = 3


def recalling(name: str, *, slow_rows: int, sparse: int, cache: int, sinks: int, recent: int, **sizes):
    """A plan whose first group's three layers are in host memory."""
    base = small_plan(name, slow_rows=slow_rows, max_batch=2 * slow_rows, **sizes)
    group, *windowed = base.model.groups
    layers = LayerGroup(name=group.name, layers=tuple(range(LAYERS)), window=0, rope=Rope(theta=1e4))
    offload = Offload(
        mode="recall", host_budget=1, sparse_blocks=sparse, sinks=sinks, recent=recent, cache_blocks=cache
    )
    model = base.model.model_copy(update={"groups": (layers, *windowed)})
    return base.model_copy(update={"model": model, "offload": offload})


# Room for what a token chooses and nothing to spare, or for some more; two tokens a page, or eight.
TIGHT = recalling("tight", slow_rows=5, sparse=9, cache=9, sinks=1, recent=3, page_size=8, context=400, pages=(60,))
SPARE = recalling("spare", slow_rows=4, sparse=12, cache=16, sinks=2, recent=4, page_size=8, context=800, pages=(90,))
PLANS = {plan.name: plan for plan in (TIGHT, SPARE)}
