"""Attention to blocks in host memory is attention to the same blocks on the card."""

import pytest
import torch

from .models import CASES
from .recall import RECENT, SINKS, Attended, RecallExecutor, SlowRow, compile_lane, recalling
from .rows import Rows
from .test_parity import text

TOKENS = 180
# Relative to the largest output, of fp32 attention.
BOUND = 1e-5


def indifferent(executor: RecallExecutor, layer: int) -> torch.Tensor:
    """No block is better than another."""
    return torch.zeros(TOKENS)


def most_promising(executor: RecallExecutor, layer: int) -> torch.Tensor:
    """By what a query head's product with a key of a block can come to, from summaries as docs/offload.md has them."""
    size, head = executor._plan.attention.page_size, 1
    model = executor._plan.model
    tokens = executor._batch.context[0]
    blocks = (tokens - 1) // size + 1 - RECENT
    if blocks <= SINKS:
        return torch.zeros(1)
    keys = executor.kv[layer][SINKS * size : blocks * size, 0, head // model.gqa_ratio].float()
    keys = keys.view(-1, size, model.head_dim)
    query = executor.buffers["qkv"][0, head * model.head_dim : (head + 1) * model.head_dim]
    least, greatest = ((end + keys.mean(1)) / 2 for end in (keys.amin(1), keys.amax(1)))
    return torch.maximum(query * least, query * greatest).sum(-1)


@pytest.fixture
def slow_row(tiny, kernels_of, tmp_path):
    """Makes the slow row of a case, and ends it."""
    rows: list[SlowRow] = []

    def make(name: str, dtype: str, sparse_blocks: int, cache_blocks: int, score) -> SlowRow:
        case = tiny(name, dtype)
        plan = recalling(case.plan, sparse_blocks, cache_blocks)
        library = compile_lane(plan, tmp_path)
        rows.append(SlowRow(plan, case.weights, kernels_of(case.library), library, score))
        return rows[-1]

    yield make
    for row in rows:
        row.close()


# A head a KV head, three of them, and windows beside full attention; 16 and 8 tokens a page.
@pytest.mark.parametrize(("name", "dtype"), [("llama", "fp32"), ("llama3-rope", "bf16"), ("gemma3", "fp32")])
def test_with_all_blocks_logits_are_those_of_dense_attention_bit_for_bit(name, dtype, tiny, kernels_of, slow_row):
    blocks = -(-TOKENS // CASES[name].page_size)
    slow = slow_row(name, dtype, 0, blocks, indifferent)
    case = tiny(name, dtype)
    dense, recalled = Rows(case.plan, case.weights, kernels_of(case.library)), 0
    for token in text(1, TOKENS):
        assert torch.equal(slow.say(token), dense.feed({0: [token]})[0][0])
        recalled += sum(attended.misses for attended in slow.executor.attended)
    # Each page came back once to each layer, but for those that have not left the last ones.
    assert recalled == (blocks - SINKS - RECENT) * len(slow.executor.full)


def restricted(slow: SlowRow, attended: Attended) -> torch.Tensor:
    """Attention of the query to the KV of the pages attended to, in float64: [heads][head_dim]."""
    model, size = slow._plan.model, slow._plan.attention.page_size
    kv = slow.executor.kv[attended.layer][: slow.lengths[0]].double()
    positions = [p for page in attended.pages for p in range(page * size, min((page + 1) * size, len(kv)))]
    keys, values = (kv[positions, i].repeat_interleave(model.gqa_ratio, 1) for i in range(2))
    scores = torch.einsum("hd,phd->hp", attended.query.double() * model.attention_scale, keys)
    return torch.einsum("hp,phd->hd", scores.softmax(-1), values)


@pytest.mark.parametrize("cache_blocks", [8, 11])
def test_sparse_attention_is_attention_to_the_blocks_that_were_chosen(cache_blocks, slow_row):
    slow = slow_row("llama3-rope", "fp32", 8, cache_blocks, most_promising)
    recalled = found = 0
    for token in text(2, TOKENS):
        slow.say(token)
        for attended in slow.executor.attended:
            expected = restricted(slow, attended)
            assert (attended.output - expected).abs().max() < BOUND * expected.abs().max()
            assert attended.pages == sorted(set(attended.pages))
            recalled += attended.misses
            found += max(0, len(attended.pages) - SINKS - RECENT) - attended.misses
    assert recalled > 0
    assert found > 0
