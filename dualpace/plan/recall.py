"""KV in host memory: the pool there, what the slow lane keeps on the card, and the paces that the link allows.

Of layers with full attention, a row of the slow lane has every sealed block in the host pool, and a fixed number of
slots in each layer on the card. KV of windowed layers is small and stays on the card. docs/offload.md has the design.
"""

from collections.abc import Iterator
from typing import NamedTuple

from dualpace.plan.paging import KvLayout
from dualpace.plan.plan import Model, Offload, RecallPace, Schedule, Target
from dualpace.plan.roofline import Work, decode_attention, decode_weights

# What a token always attends to: the first tokens, which take the attention that nothing else deserves (StreamingLLM,
# Xiao et al., ICLR 2024), and the last ones, whose blocks may not have left yet.
SINK_TOKENS = 4
RECENT_TOKENS = 128
# Blocks a layer that a row keeps beyond those that one token attends to, as a share of these: the next tokens' finds.
SPARE = 0.25
# Read on an H200's host: seconds to pin a byte.
PINNING = 0.6 / 2**30
CONTEXTS = (8192, 16384, 32768, 65536, 131072, 262144, 524288)
WORD_BYTES = 4


class SlowLane(NamedTuple):
    """Rows with KV in host memory, and slots that each has in every layer on the card."""

    rows: int
    cache_blocks: int


def sinks(page_size: int) -> int:
    """Blocks at the beginning of a row that every token attends to."""
    return -(-SINK_TOKENS // page_size)


def recent(page_size: int) -> int:
    """Blocks at the end of a row that every token attends to, the one that takes its KV among them."""
    return -(-RECENT_TOKENS // page_size) + 1


def recalled_layers(model: Model) -> list[int]:
    """Layers whose blocks may be in host memory."""
    return [layer for group in model.groups if not group.window for layer in group.layers]


def offloaded_layers(model: Model) -> int:
    """How many layers have blocks that may be in host memory."""
    return len(recalled_layers(model))


def host_page_bytes(layout: KvLayout) -> int:
    """Bytes of one page in the host pool of a card: its blocks of all offloaded layers, one after the other."""
    return layout.block_bytes * offloaded_layers(layout.model)


def summary_bytes(model: Model) -> int:
    """Key summaries of one page, after Quest (Tang et al., ICML 2024): of one KV head of each layer, by channel.

    The least and the greatest of the keys, each halfway to their mean.
    """
    return offloaded_layers(model) * 2 * model.head_dim * model.element_bytes


def device_bytes(model: Model, offload: Offload, row_pages: int, lane: SlowLane) -> int:
    """What the slow lane takes of the card beside KV, activations and logits.

    Summaries by host page, if any block is ever left out; which host pages are free, and how often each was; by row,
    its host pages and their scores, and in each layer where a page is cached, what a slot caches and when it was last
    attended to; lists of blocks that move, either way.
    """
    layers = offloaded_layers(model)
    row_words = 2 * row_pages + layers * (row_pages + 2 * lane.cache_blocks) + lane.cache_blocks
    queue_words = lists(layers) * 2 * lane.rows * max(lane.cache_blocks, layers)
    summaries = offload.host_pages * summary_bytes(model) if offload.sparse_blocks else 0
    return summaries + (lane.rows * row_words + 2 * queue_words + 2 * offload.host_pages) * WORD_BYTES


def lists(layers: int) -> int:
    """Lists of blocks that may wait to be copied: those of two steps."""
    return 1 << (2 * layers - 1).bit_length()


def widest_lane(offload: Offload, max_batch: int, row_pages: int) -> SlowLane:
    """The most rows and slots that there could be, however much KV memory the card has.

    Half of the batch at most: the others are fast. Rows that a smaller part of the host pool would do for fit the card.
    """
    if offload.mode == "off":
        return SlowLane(0, 0)
    if not offload.sparse_blocks:
        return SlowLane(min(max_batch // 2, max(offload.host_pages // row_pages, 1)), row_pages)
    cache = min(offload.sparse_blocks + int(SPARE * offload.sparse_blocks), row_pages)
    return SlowLane(min(max_batch // 2, max(offload.host_pages // cache, 1)), cache)


def slow_lane(offload: Offload, max_batch: int, row_pages: int, pool_pages: int) -> SlowLane:
    """The rows and slots of a card with `pool_pages` pages; slots are pages of the pool, in each layer by themselves.

    Sparse rows have the slots that a token needs and some to spare. Exact ones, to whom every slot is a block less to
    recall, share half of the pool.
    """
    lane = widest_lane(offload, max_batch, row_pages)
    if not lane.rows:
        return lane
    if offload.sparse_blocks:
        return lane._replace(rows=min(lane.rows, pool_pages // lane.cache_blocks))
    return lane._replace(cache_blocks=min(row_pages, pool_pages // (2 * lane.rows)))


def paces(model: Model, target: Target, layout: KvLayout, offload: Offload, schedule: Schedule) -> Iterator[RecallPace]:
    """The slow lane at contexts that its rows do not have on the card, as many rows as lane and host pool hold."""
    if not target.link_bandwidth:
        return
    for context in (*(n for n in CONTEXTS if n < schedule.max_context), schedule.max_context):
        pages = -(-context // layout.page_size)
        rows = min(schedule.slow_rows, offload.host_pages // pages)
        if rows and pages > offload.cache_blocks:
            yield _pace(model, target, layout, offload, rows, context)


def _pace(model: Model, target: Target, layout: KvLayout, offload: Offload, rows: int, context: int) -> RecallPace:
    pages = -(-context // layout.page_size)
    blocks = min(offload.sparse_blocks, pages) or pages
    kept = offload.sinks + offload.recent if offload.sparse_blocks else offload.cache_blocks
    recalled = (blocks - kept) * host_page_bytes(layout)
    weights = decode_weights(model, rows)
    attention = decode_attention(model, context, blocks * layout.page_size)
    scored = pages * summary_bytes(model) if offload.sparse_blocks else 0
    step = weights.seconds(target) + Work(rows * (attention.bytes + scored), rows * attention.flops).seconds(target)
    link = rows * recalled / target.link_bandwidth
    return RecallPace(
        rows=rows,
        context=context,
        blocks=blocks,
        row_bytes=recalled * target.count,
        link_seconds=link,
        step_seconds=step,
        least_hits=max(0.0, 1 - step / link),
        tokens_per_second=rows / step,
    )
