"""The memory bar: everything is there, as long as it is large, at any width."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpace.plan.bar import ASCII, BLOCKS, memory_bar
from dualpace.plan.plan import Memory
from dualpace.plan.quantity import size_text

from .deployments import GEMMA_270M, LLAMA_8B, plan

LLAMA, GEMMA = plan(LLAMA_8B), plan(GEMMA_270M, gpu=None)


def bar(text: str) -> str:
    return text.splitlines()[0].strip().strip("[]")


@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII])
@pytest.mark.parametrize("deployment", [LLAMA, GEMMA])
@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_the_bar_is_as_wide_as_it_is_told_to_be(deployment, width, glyphs):
    text = memory_bar(deployment, width, glyphs)
    assert len(text.splitlines()[0]) == width
    assert len(bar(text)) == width - 4
    assert set(bar(text)) == set(glyphs)


def test_parts_are_as_long_as_they_are_large():
    drawn = bar(memory_bar(LLAMA, 204))
    assert drawn.count("█") == pytest.approx(200 * LLAMA.memory.weights / LLAMA.target.memory, abs=1)
    assert drawn.count("▓") == pytest.approx(200 * LLAMA.memory.kv / LLAMA.target.memory, abs=2)
    assert drawn.count("·") == pytest.approx(20, abs=1)


def test_numbers_stand_below_the_bar():
    text = memory_bar(LLAMA, 100)
    buffers = f"activations {size_text(LLAMA.memory.activations)}, logits {size_text(LLAMA.memory.logits)}"
    for line in ("█ weights     15 GiB   10.8%", "· not ours  13.9 GiB   10.0%", buffers):
        assert line in text


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2**40), min_size=8, max_size=8), st.integers(40, 300))
def test_any_memory_map_fills_the_bar(sizes, width):
    weights, activations, logits, history, scheduler, recall, kv, free = sizes
    limit = sum(sizes)
    memory = Memory(
        limit=limit,
        weights=weights,
        activations=activations,
        logits=logits,
        history=history,
        scheduler=scheduler,
        recall=recall,
        kv=kv,
        free=free,
    )
    target = LLAMA.target.model_copy(update={"memory": limit + 1})
    drawn = bar(memory_bar(LLAMA.model_copy(update={"memory": memory, "target": target}), width))
    assert len(drawn) == width - 4
    assert ("█" in drawn) == (weights > 0)
    assert ("▓" in drawn) == (kv > 0)
