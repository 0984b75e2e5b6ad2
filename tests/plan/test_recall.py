"""KV in host memory: what of it is planned, and the paces that follow."""

import pytest

from dualpace.plan.comparison import text_comparison
from dualpace.plan.plan import Plan
from dualpace.plan.report import text_report
from dualpace.plan.resolve import PlanError
from dualpace.plan.targets import GIB, GPUS

from .deployments import GEMMA_270M, LLAMA_8B, MISTRAL_7B, plan

BLOCK = 64 * 2**10
LAYERS = 32


def recalling(shape=LLAMA_8B, host="64GiB", blocks: int | None = 256, **more) -> Plan:
    """A plan with 8 GiB for KV on the card, exact without `blocks`."""
    selection = {"blocks": blocks} if blocks else "exact"
    offload = {"offload__mode": "recall", "offload__host_budget": host, "offload__selection": selection}
    return plan(shape, **{"target__kv_budget": "8GiB", "scheduler__max_batch": 64, **offload, **more})


def test_the_host_pool_holds_whole_pages_of_all_layers():
    assert recalling().offload.host_pages == 64 * GIB // (BLOCK * LAYERS)
    assert recalling(host="3MiB", model__max_context=8192).offload.host_pages == 1
    assert (
        recalling(target__count=2).offload.host_pages == recalling().offload.host_pages
    )  # half the heads, half the pool


def test_only_layers_with_full_attention_are_in_host_memory():
    found = recalling(GEMMA_270M, host="1GiB", blocks=64, model__max_context=32768)
    full = next(group for group in found.model.groups if not group.window)
    assert found.offload.host_pages == GIB // (found.pages[0].block_bytes * len(full.layers))
    with pytest.raises(PlanError, match="every layer has a window"):
        recalling(MISTRAL_7B)


def test_a_row_is_in_host_memory_as_a_whole():
    assert recalling(host="15GiB").schedule.max_context == 15 * GIB // (BLOCK * LAYERS) * 16
    assert recalling(host="16GiB").schedule.max_context == 131_072
    with pytest.raises(PlanError, match="8 GiB of KV memory or 15 GiB of host memory: the largest that fits is 122880"):
        recalling(host="15GiB", model__max_context=131_072)
    # One that fits the card need not fit the host.
    assert recalling(host="2GiB").schedule.max_context == 65_536


def test_sparse_rows_have_the_slots_that_they_need_and_some_to_spare():
    found = recalling()
    assert found.offload.cache_blocks == 256 * 5 // 4
    assert found.schedule.slow_rows == found.pages[0].pages // found.offload.cache_blocks
    assert found.offload.sinks + found.offload.recent < 256
    # Half of the batch at most, and no more than the host pool has KV for that the card could not hold.
    assert recalling(scheduler__max_batch=8).schedule.slow_rows == 4
    assert recalling(host="2GiB").schedule.slow_rows == 1024 // 320


def test_exact_rows_share_half_of_the_pool():
    found = recalling(blocks=None)
    assert found.schedule.slow_rows == 4  # of 131,072 tokens, in 64 GiB
    assert found.offload.cache_blocks == found.pages[0].pages // 8


def test_without_offload_nothing_of_it_is_planned():
    found = plan(LLAMA_8B)
    assert (found.schedule.slow_rows, found.offload.cache_blocks, found.memory.recall, found.recall) == (0, 0, 0, ())


def test_summaries_take_a_share_of_the_host_pool_and_none_where_all_is_attended_to():
    found, exact = recalling(), recalling(blocks=None)
    summaries = 64 * GIB // (8 * 16)  # of one of 8 KV heads, two keys of 16 and no values
    assert summaries < found.memory.recall < 1.05 * summaries
    assert exact.memory.recall < 0.05 * summaries


def test_the_slow_lane_has_buffers_of_its_own():
    off = plan(LLAMA_8B, scheduler__max_batch=64, target__kv_budget="8GiB")
    found = recalling()
    assert found.memory.activations == 2 * off.memory.activations
    assert found.memory.logits == 2 * off.memory.logits
    taken = (getattr(found.memory, name) for name in ("weights", "activations", "logits", "history", "scheduler"))
    assert found.memory.free == found.memory.limit - sum(taken) - found.memory.recall - found.memory.kv


def test_what_is_recalled_at_most_is_what_may_be_chosen():
    found = recalling()
    chosen = 256 - found.offload.sinks - found.offload.recent
    for pace in found.recall:
        assert (pace.blocks, pace.row_bytes) == (256, chosen * BLOCK * LAYERS)
        assert pace.link_seconds == pytest.approx(pace.rows * pace.row_bytes / GPUS["h200"].link_bandwidth)
        assert (1 - pace.least_hits) * pace.link_seconds == pytest.approx(pace.step_seconds)
    assert [(pace.rows, pace.context) for pace in found.recall[2:]] == [(12, 32_768), (8, 65_536), (4, 131_072)]


def test_exact_rows_recall_all_but_what_they_have_on_the_card():
    found = recalling(blocks=None)
    for pace in found.recall:
        assert pace.row_bytes == (pace.context // 16 - found.offload.cache_blocks) * BLOCK * LAYERS


def test_a_link_that_keeps_up_needs_no_hits():
    assert recalling(blocks=11).recall[0].least_hits == 0


def test_a_context_that_the_card_holds_has_no_pace():
    assert all(pace.context > 320 * 16 for pace in recalling().recall)
    assert recalling(model__max_context=320 * 16).recall == ()


def test_the_report_shows_the_paces():
    text = text_report(recalling())
    assert "slow lane, the least times with 51 GB/s from host memory" in text
    assert "12 slow rows, 320 blocks of a layer each on the card, 32,768 pages in host memory" in text
    assert "slow lane" not in text_report(plan(LLAMA_8B))


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"blocks": 10}, "offload.selection.blocks", "the first 1 and the last 9"),
        ({"scheduler__max_batch": 1}, "scheduler.max_batch", "fast or slow"),
        ({"target__kv_budget": "256MiB"}, "target.kv_budget", "320 pages"),
    ],
)
def test_what_cannot_be_planned_is_refused(changes, path, message):
    with pytest.raises(PlanError) as refused:
        recalling(**changes)
    assert ".".join(map(str, refused.value.path)) == path
    assert message in refused.value.message


def test_a_comparison_shows_the_slow_lane_of_both():
    text = text_comparison(recalling(), recalling(blocks=512), ("a", "b"))
    assert "slow lane, with the hits needed\n  context  rows a  rows b  hits a  hits b" in text
    assert "recall[" not in text
    assert "slow lane" not in text_comparison(recalling(), recalling(serving__port=9000), ("a", "b"))
