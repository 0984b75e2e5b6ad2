"""Rows with KV in host memory, served by the CPU engine through the rings."""

import pytest

from dualpace.engine.ring import SamplingParams
from dualpace.plan.plan import Offload

from .compiled import host_libraries
from .requests import answers
from .test_parity import text

CACHE, SINKS, RECENT = 13, 1, 3
# Prompt and answer of each request. The card holds the second at any time, and of the others one at a time.
LENGTHS = ((300, 40), (20, 30), (210, 60), (390, 9))
CONTEXT = 512


def offloaded(plan, sparse_blocks=0):
    """`plan` with fewer pages of the layers with full attention than its longest rows have, and three slow rows."""
    size = plan.attention.page_size
    pools = tuple(
        pool if group.window else pool.model_copy(update={"pages": 240 // size + 3 * CACHE})
        for pool, group in zip(plan.pages, plan.model.groups, strict=True)
    )
    offload = Offload(
        mode="recall", host_budget=1, sparse_blocks=sparse_blocks, sinks=SINKS, recent=RECENT,
        host_pages=3 * (CONTEXT // size), cache_blocks=CACHE,
    )  # fmt: skip
    schedule = plan.schedule.model_copy(update={"slow_rows": 3})
    return plan.model_copy(update={"offload": offload, "schedule": schedule, "pages": pools})


def ask(case, plan, store, folder, sparse=False):
    """The events of each request, and what the engine says of itself at the end."""
    folder.mkdir()
    said = []
    requests = [
        (text(seed, length), SamplingParams(max_tokens=count, temperature=0.0, logprobs=0, sparse=sparse))
        for seed, (length, count) in enumerate(LENGTHS)
    ]
    found = answers(plan, case.weights, host_libraries(plan, store), folder / "rings", requests, said.append)
    return found, said[0]


@pytest.mark.parametrize(("name", "dtype"), [("llama", "fp32"), ("llama3-rope", "bf16"), ("gemma3", "fp32")])
def test_with_all_blocks_answers_are_those_of_dense_attention(name, dtype, tiny, store, tmp_path):
    case = tiny(name, dtype)
    dense, _ = ask(case, case.plan, store, tmp_path / "dense")
    slow, status = ask(case, offloaded(case.plan), store, tmp_path / "slow")
    for expected, found in zip(dense, slow, strict=True):
        # In 16 bits a product of many rows is rounded, so KV depends on how a prompt was cut.
        close = pytest.approx(expected[0].logprob, abs=1e-4 if dtype == "fp32" else 5e-2)
        assert found[0].logprob == close
        if dtype == "fp32":
            assert [event.token for event in found] == [event.token for event in expected]
            assert [event.logprob for event in found] == pytest.approx([e.logprob for e in expected], abs=1e-4)
        assert found[-1].sparse_tokens == 0
    assert min(status.slow_steps, status.recall_misses, status.sent_bytes, status.slow_step_ns) > 0
    assert status.recalled_bytes == status.recall_misses * case.plan.pages[0].block_bytes


def test_sparse_rows_say_how_many_tokens_left_blocks_out(tiny, store, tmp_path):
    case = tiny("llama", "fp32")
    dense, _ = ask(case, case.plan, store, tmp_path / "dense")
    plan = offloaded(case.plan, sparse_blocks=9)
    exact, _ = ask(case, plan, store, tmp_path / "exact")
    sparse, status = ask(case, plan, store, tmp_path / "sparse", sparse=True)
    for expected, found, lossy in zip(dense, exact, sparse, strict=True):
        # Who does not ask for it gets what dense attention says, and so does the first token of who does.
        assert [event.token for event in found] == [event.token for event in expected]
        assert lossy[0].logprob == pytest.approx(expected[0].logprob, abs=1e-4)
    counts = [events[-1].sparse_tokens for events in sparse]
    assert sum(counts) > 0
    assert all(count in (0, length - 1) for count, (_, length) in zip(counts, LENGTHS, strict=True))
    assert any(
        [event.logprob for event in found] != pytest.approx([event.logprob for event in expected], abs=1e-4)
        for expected, found, count in zip(dense, sparse, counts, strict=True)
        if count
    )
    assert status.recall_hits > 0
