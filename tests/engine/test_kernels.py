"""Single kernels against float64."""

import pytest
import torch

from dualpace.engine.kernels import Kernels
from dualpace.model.weights import DTYPES
from dualpace.plan.structs import Route
from tests.engine.rows import Rows
from tests.engine.test_parity import ISAS

# Relative to the largest output. bf16 inputs are rounded where the machine multiplies pairs of bf16.
BOUNDS = {"fp32": 2e-6, "fp16": 2e-6, "bf16": 5e-3}


def linear(kernels: Kernels, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    workspace = torch.empty(kernels.workspace_bytes, dtype=torch.uint8)
    y = torch.full((x.shape[0], weight.shape[0]), float("nan"))
    kernels.dp_linear(
        weight.data_ptr(),
        bias.data_ptr() if bias is not None else None,
        x.data_ptr(),
        y.data_ptr(),
        workspace.data_ptr(),
        x.shape[1],
        weight.shape[0],
        x.shape[0],
    )
    return y


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", BOUNDS)
def test_linear_of_every_row_count_equals_float64(dtype, isa, tiny, kernels_of):
    kernels = kernels_of(tiny("llama", dtype).library, isa)
    torch.manual_seed(0)
    # 112 inputs leave half a step of pairs, 509 outputs a remainder of every tile.
    weight, bias = torch.randn(509, 112).to(DTYPES[dtype]), torch.randn(509).to(DTYPES[dtype])
    for rows in range(1, kernels.streamed_rows + 1):
        x = torch.randn(rows, 112)
        for offset in (bias, None):
            exact = x.double() @ weight.double().t() + (0 if offset is None else offset.double())
            error = (linear(kernels, x, weight, offset).double() - exact).abs().max()
            assert error < BOUNDS[dtype] * exact.abs().max(), (rows, offset is None)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", BOUNDS)
def test_a_row_of_a_product_is_the_same_in_every_batch(dtype, isa, tiny, kernels_of):
    kernels = kernels_of(tiny("llama", dtype).library, isa)
    torch.manual_seed(0)
    weight, x = torch.randn(509, 112).to(DTYPES[dtype]), torch.randn(kernels.streamed_rows, 112)
    every = linear(kernels, x, weight, None)
    for rows in range(1, kernels.streamed_rows + 1):
        assert torch.equal(linear(kernels, x[:rows].contiguous(), weight, None), every[:rows])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("name", "activation"), [("llama", "silu"), ("gemma3", "gelu")])
def test_gate_equals_float64_far_from_zero_too(name, activation, isa, tiny, kernels_of):
    case = tiny(name, "fp32")
    kernels = kernels_of(case.library, isa)
    width = case.plan.model.intermediate
    gate_up = torch.randn(3, 2 * width) * 3
    gate_up[0, :8] = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 60.0, -60.0, 1e4, -1e4])
    act = torch.empty(3, width)
    kernels.dp_gate(gate_up.data_ptr(), act.data_ptr(), 3)
    gate, up = gate_up.double().chunk(2, dim=1)
    if activation == "silu":
        exact = torch.nn.functional.silu(gate) * up
    else:
        exact = torch.nn.functional.gelu(gate, approximate="tanh") * up
    assert torch.allclose(act.double(), exact, rtol=2e-6, atol=1e-6)


def test_a_step_says_which_kv_its_attention_read(tiny, kernels_of):
    case = tiny("gemma3", "bf16")
    plan = case.plan
    rows = Rows(plan, case.weights, kernels_of(case.library))
    rows.feed({0: list(range(60)), 1: [7]})
    rows.feed({0: [5], 1: [6]})
    token = 2 * plan.model.kv_heads * plan.model.head_dim * plan.model.element_bytes
    partial = 2 * plan.model.heads * (plan.model.head_dim + 1) * 4
    for group, work in zip(plan.model.groups, rows.attention, strict=True):
        seen = [min(context, group.window or context) for context in (61, 2)]
        splits = [-(-keys // plan.attention.split_tokens) for keys in seen]
        assert work.route == Route.HOST
        assert work.bytes == token * sum(seen)
        assert work.items == sum(splits)
        assert work.merge_bytes == partial * sum(n for n in splits if n > 1)
