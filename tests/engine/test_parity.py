"""Teacher-forced logits at every position against transformers, over permuted pages and poisoned slots."""

import random
from collections.abc import Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM

from dualpace.engine.kernels import Kernels
from dualpace.model.weights import DTYPES
from tests.engine.models import CASES, CHUNK
from tests.engine.rows import Rows, reference_logits

TOKENS = 200
ISAS = ("v3", "v4", "v4_bf16", "v4_amx")
# Largest difference of an fp32 logit; the logits are up to about 10.
BOUND = 1e-4


def text(seed: int, count: int = TOKENS) -> list[int]:
    return random.Random(seed).choices(range(131), k=count)


def chunk_sizes(page_size: int) -> Iterator[int]:
    """Around the page size, single tokens, and up to a whole chunk with the neighbour's token."""
    for size in (page_size - 1, 1, 1, page_size, page_size + 1):
        yield from (min(CHUNK - 1, size - done) for done in range(0, size, CHUNK - 1))
    while True:
        yield from (1, 2, 1, 1, 1, 17, 1, CHUNK - 1)


def teacher_forced(rows: Rows, page_size: int, tokens: list[int], slot: int) -> torch.Tensor:
    """Logits after each token of `tokens`, fed in chunks to `slot` while another row decodes beside it."""
    neighbour = [*text(99, 2 * TOKENS)]
    found = []
    sizes = chunk_sizes(page_size)
    done = 0
    while done < len(tokens):
        chunk = tokens[done : done + next(sizes)]
        # The neighbour comes first in half of the steps.
        chunks = {slot: chunk, 0: [neighbour.pop()]} if len(chunk) % 2 else {0: [neighbour.pop()], slot: chunk}
        found.append(rows.feed(chunks)[slot])
        done += len(chunk)
    return torch.cat(found)


def assert_same(found: torch.Tensor, expected: torch.Tensor, bound: float) -> None:
    assert (found - expected).abs().max() < bound
    best = expected.topk(2).values
    decided = best[:, 0] - best[:, 1] > 2 * bound
    assert decided.sum() > 0.9 * len(decided)
    assert torch.equal(found.argmax(1)[decided], expected.argmax(1)[decided])


@pytest.mark.parametrize("name", CASES)
def test_fp32_logits_equal_the_reference_at_every_position(name, tiny, kernels_of):
    case = tiny(name, "fp32")
    rows = Rows(case.plan, case.weights, kernels_of(case.library))
    found = teacher_forced(rows, CASES[name].page_size, text(1), slot=2)
    assert_same(found, reference_logits(case.model, text(1)), BOUND)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3"])
def test_every_instruction_set_computes_the_same(name, isa, tiny, kernels_of):
    case = tiny(name, "fp32")
    rows = Rows(case.plan, case.weights, kernels_of(case.library, isa))
    found = teacher_forced(rows, CASES[name].page_size, text(2), slot=1)
    assert_same(found, reference_logits(case.model, text(2)), BOUND)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("name", "dtype"), [("llama", "fp16"), ("llama", "bf16"), ("qwen2", "bf16"), ("gemma3", "bf16")]
)
def test_16_bit_logits_err_less_than_the_reference_in_16_bits(name, dtype, isa, tiny, kernels_of):
    case = tiny(name, dtype)
    rows = Rows(case.plan, case.weights, kernels_of(case.library, isa))
    found = teacher_forced(rows, CASES[name].page_size, text(3), slot=3)
    theirs = AutoModelForCausalLM.from_pretrained(case.checkpoint, dtype=DTYPES[dtype], attn_implementation="eager")
    expected = reference_logits(case.model, text(3))
    error, their_error = found - expected, reference_logits(theirs, text(3)) - expected
    assert error.square().mean() < their_error.square().mean()


@pytest.mark.parametrize(("name", "dtype"), [("gemma3", "bf16"), ("qwen3", "fp32")])
def test_a_decoded_token_does_not_depend_on_the_rows_beside_it(name, dtype, tiny, kernels_of):
    case = tiny(name, dtype)
    kernels = kernels_of(case.library)

    def decoded(beside: int) -> torch.Tensor:
        rows = Rows(case.plan, case.weights, kernels, seed=beside)
        for slot in range(beside + 1):
            length = max(150 - 20 * slot, 5)
            for begin in range(0, length, CHUNK):
                rows.feed({slot: text(slot)[begin : min(begin + CHUNK, length)]})
        logits = [rows.feed({slot: [token] for slot in range(beside, -1, -1)})[0] for token in text(5, 8)]
        return torch.cat(logits)

    alone = decoded(0)
    for beside in (1, 3, 16, 19):
        assert torch.equal(decoded(beside), alone)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_decoded_token_does_not_depend_on_the_prefill_beside_it(dtype, tiny, kernels_of):
    case = tiny("llama", dtype)
    kernels = kernels_of(case.library)

    def decoded(chunk: int) -> torch.Tensor:
        rows = Rows(case.plan, case.weights, kernels, seed=chunk)
        rows.feed({0: text(0)[:30]})
        return rows.feed({0: [5], 1: text(1)[:chunk]})[0] if chunk else rows.feed({0: [5]})[0]

    alone = decoded(0)
    for chunk in (3, 17, CHUNK - 1):
        assert torch.equal(decoded(chunk), alone)


def test_logits_are_never_rounded_to_16_bits(tiny, kernels_of):
    case = tiny("llama", "bf16")
    rows = Rows(case.plan, case.weights, kernels_of(case.library))
    prompts = {slot: text(slot)[:3] for slot in range(case.plan.schedule.max_batch)}
    for logits in rows.feed(prompts).values():
        assert not torch.equal(logits[-1], logits[-1].bfloat16().float())


def test_kernels_and_torch_share_one_openmp_runtime(tiny):
    Kernels(tiny("llama", "fp32").library)
    with open("/proc/self/maps") as maps:  # noqa: PTH123
        runtimes = {line.split()[-1] for line in maps if "libgomp" in line or "libomp" in line}
    assert len(runtimes) == 1
