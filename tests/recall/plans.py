"""Plans small enough that slow rows choose, evict, wait and pause within a few steps."""

from pathlib import Path

from dualpace.plan.plan import LayerGroup, Offload, Rope
from tests.scheduler.plans import small_plan

HERE = Path(__file__).parent
LAYERS = 3


def recalling(name: str, *, slow_rows: int, sparse: int, cache: int, sinks: int, recent: int, host: int = 0, **sizes):
    """A plan whose first group's three layers are in host memory, `host` pages or those of three rows."""
    base = small_plan(name, slow_rows=slow_rows, max_batch=2 * slow_rows, **sizes)
    group, *windowed = base.model.groups
    layers = LayerGroup(name=group.name, layers=tuple(range(LAYERS)), window=0, rope=Rope(theta=1e4))
    offload = Offload(
        mode="recall", host_budget=1, sparse_blocks=sparse, sinks=sinks, recent=recent, cache_blocks=cache,
        host_pages=host or 3 * base.pages[0].pages_per_row,
    )  # fmt: skip
    model = base.model.model_copy(update={"groups": (layers, *windowed)})
    return base.model_copy(update={"model": model, "offload": offload})


# Room for what a token chooses and nothing to spare, or for some more; two tokens a page, or eight.
TIGHT = recalling("tight", slow_rows=5, sparse=9, cache=9, sinks=1, recent=3, page_size=8, context=400, pages=(60,))
SPARE = recalling("spare", slow_rows=4, sparse=12, cache=16, sinks=2, recent=4, page_size=8, context=800, pages=(90,))
PLANS = {plan.name: plan for plan in (TIGHT, SPARE)}
# For the scheduler: rows that fit the card and rows that do not, of two rings, with host pages for one and a half of
# the longest. A token chooses three blocks; or all are attended to, in passes, beside windows.
SERVED = recalling(
    "served", slow_rows=3, sparse=7, cache=9, sinks=1, recent=3, host=60, page_size=8, context=320, pages=(36,),
    rings=2, request_slots=8, token_slots=32, arena_words=2048, queue=8, queued_tokens=1280, history_pages=130,
    prefill_chunk=32,
)  # fmt: skip
EXACT = recalling(
    "exact", slow_rows=2, sparse=0, cache=14, sinks=1, recent=3, host=90, page_size=8, context=384, pages=(40, 24),
    windows=(0, 20), rings=2, request_slots=8, token_slots=32, arena_words=2048, queue=8, queued_tokens=1280,
    history_pages=150, prefill_chunk=32,
)  # fmt: skip
