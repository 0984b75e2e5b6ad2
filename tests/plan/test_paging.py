"""Pools hold one longest row, and a full batch of equal rows uses them up together."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dualpace.plan.paging import KvLayout

from .deployments import GEMMA_270M, LLAMA_8B, MISTRAL_7B, plan

MODELS = {shape["family"]: plan(shape, gpu=None).model for shape in (LLAMA_8B, GEMMA_270M, MISTRAL_7B)}


def layout(family, page_size=16, chunk=512, cards=1):
    return KvLayout(MODELS[family], page_size, chunk, cards)


layouts = st.builds(
    layout, st.sampled_from(sorted(MODELS)), st.sampled_from([8, 16, 32, 64, 128]), st.sampled_from([16, 500, 2048])
)


def test_a_block_of_llama_8b_is_64_kib():
    kv = layout("llama")
    assert kv.block_bytes == 65536
    assert kv.page_bytes(kv.model.groups[0]) == 32 * 65536


def test_a_row_holds_a_page_for_every_page_size_tokens_without_a_window():
    kv = layout("llama")
    assert [kv.row_pages(kv.model.groups[0], n) for n in (1, 15, 16, 17, 131072)] == [1, 1, 1, 2, 8192]


@given(kv=layouts, start=st.integers(0, 30000), chunk_part=st.floats(0, 1))
def test_a_windowed_row_never_touches_more_pages_than_it_may_hold(kv, start, chunk_part):
    # A chunk of tokens at `start` reads back to the start of its first token's window and writes to its own end.
    chunk = max(1, int(kv.prefill_chunk * chunk_part))
    for group in kv.model.groups:
        if group.window:
            first, last = max(0, start - group.window + 1), start + chunk - 1
            touched = last // kv.page_size - first // kv.page_size + 1
            assert touched <= kv.row_pages(group, start + chunk)


@given(kv=layouts, budget=st.integers(2**16, 2**36), limit=st.integers(1, 40000))
def test_the_longest_row_fits_and_one_page_more_does_not(kv, budget, limit):
    longest = kv.longest_row(budget, limit)
    assert longest <= limit
    if longest:
        assert kv.row_bytes(longest) <= budget
    if longest < limit:
        assert kv.row_bytes(min(longest + kv.page_size, limit)) > budget


@settings(max_examples=200)
@given(kv=layouts, budget=st.integers(2**22, 2**36), rows=st.integers(1, 256), limit=st.integers(1, 40000))
def test_pools_fit_their_budget_hold_the_longest_row_and_waste_less_than_a_page_a_group(kv, budget, rows, limit):
    context = kv.longest_row(budget, limit)
    pools = kv.pools(budget, rows, context, context) if context else None
    if pools is None:
        return
    used = sum(pool.pages * pool.page_bytes for pool in pools)
    assert used <= budget
    for group, pool in zip(kv.model.groups, pools, strict=True):
        assert pool.pages >= kv.row_pages(group, context)
        assert pool.pages >= rows
        assert pool.pages_per_row == -(-context // kv.page_size)
    full = rows * kv.row_bytes(context)
    assert used == full or used + sum(pool.page_bytes for pool in pools) > budget


def test_a_batch_of_equal_rows_runs_out_of_both_pools_at_the_same_length():
    full, sliding = layout("gemma3").pools(budget=2**27, rows=32, context=1024, resident=1024)
    # 32 rows of 18 KiB a token: 14 pages each, and neither pool is limited by the window or by one longest row.
    assert full.pages // 32 == sliding.pages // 32 == 14


def test_one_longest_row_fits_where_a_batch_of_short_ones_would_need_less():
    full, _ = layout("gemma3").pools(budget=2**28, rows=4, context=32768, resident=32768)
    assert full.pages >= 2048


def test_no_pools_when_a_row_cannot_have_a_page():
    assert layout("llama").pools(31 * 32 * 65536, 32, 16, 16) is None


def test_cards_share_the_kv_heads_of_a_block():
    assert layout("llama", cards=4).block_bytes == layout("llama").block_bytes // 4
