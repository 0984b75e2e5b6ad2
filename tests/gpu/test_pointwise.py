from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from dualpace.engine.kernels import Kernels as HostKernels
from dualpace.plan.plan import Plan

from .batch import DTYPES, TOLERANCE, step_buffers
from .conftest import compile_engine, compile_sources, host_twin
from .plans import PLANS
from .test_attention import worst_error

pytestmark = pytest.mark.gpu

# FP32, fp16, bf16; a scaled embedding, an offset of the norms' weights, both activations; 512 to 4,096 wide.
COVERED = ["g8-d80-p16-fp32", "g3-d96-p8-fp16", "g4-d128-p16-bf16", "windows-g4-d256-p16-bf16"]
ROOM = 40  # rows of the buffers, more than any step here has
FP32_TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=COVERED)
def plan(request):
    return PLANS[request.param]


@pytest.fixture(scope="module")
def host(plan, store):
    return HostKernels(compile_engine(host_twin(plan), store))


@dataclass(frozen=True)
class Step:
    """A step of `tokens` tokens, the last but one of which is sampled first, on a grid of `ctas`."""

    plan: Plan
    launch: Callable[..., None]
    tokens: int
    ctas: int

    @property
    def buffers(self) -> torch.Tensor:
        """StepBuffers on the device."""
        return step_buffers(
            self.plan, tokens=self.tokens, token=self.ids, samples=len(self.sampled), sample_index=self.sampled
        )

    @property
    def ids(self) -> list[int]:
        """Token ids, the first and the last of the vocabulary among them."""
        vocab = self.plan.model.vocab
        return [(vocab - 1) * (t % 2) if t < 2 else 977 * t % vocab for t in range(self.tokens)]

    @property
    def sampled(self) -> list[int]:
        """Tokens whose logits are wanted."""
        return [*range(self.tokens - 2, -1, -3), self.tokens - 1][:8]

    def random(self, *shape: int) -> torch.Tensor:
        """Normal values in the model's dtype."""
        return torch.randn(*shape, device="cuda").to(DTYPES[self.plan.model.dtype])

    def poison(self, width: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """[ROOM][width] of NaN."""
        return torch.full((ROOM, width), torch.nan, device="cuda", dtype=dtype or DTYPES[self.plan.model.dtype])

    def run(self, kernel: str, *operands: torch.Tensor | None) -> None:
        """Launch `kernel` on the step."""
        self.launch(kernel, (self.ctas,), self.buffers, *operands)


@pytest.fixture(scope="module")
def launch(plan, store):
    from dualpace.engine.device import Cubin

    return Cubin(compile_sources(plan, store, "cuda/pointwise.cu")).launch


@pytest.fixture(params=[(1, 1), (1, 200), (37, 5), (37, 300)], ids=lambda p: f"{p[0]}-tokens-{p[1]}-ctas")
def step(request, plan, launch):
    torch.manual_seed(0)
    return Step(plan, launch, *request.param)


def assert_rows(out, expected, tolerance):
    """`out` begins with the rows of `expected`, and the rest of it is still poison."""
    assert worst_error(out[: len(expected)], expected) < tolerance
    assert out[len(expected) :].isnan().all()


def normalised(x, weight, model):
    x = x.double()
    return x * (x.square().mean(-1, keepdim=True) + model.norm_eps).rsqrt() * (weight.double() + model.norm_offset)


def activated(x, model):
    if model.activation == "silu":
        return torch.nn.functional.silu(x.double())
    return torch.nn.functional.gelu(x.double(), approximate="tanh")


def test_embedding_is_scaled_in_the_type_of_the_weights(step):
    model = step.plan.model
    table, residual = step.random(model.vocab, model.hidden), step.poison(model.hidden, torch.float32)
    step.run("dp_embed", table, residual)
    scale = torch.tensor(model.embed_scale).to(table.dtype).double()
    assert_rows(residual, table[step.ids].double() * scale.cuda(), FP32_TOLERANCE)


def test_norm(step):
    model = step.plan.model
    weight, x = step.random(model.hidden), step.poison(model.hidden)
    residual = 100 * torch.randn(ROOM, model.hidden, device="cuda")
    step.run("dp_norm", weight, residual, x)
    assert_rows(x, normalised(residual[: step.tokens], weight, model), TOLERANCE[model.dtype])


@pytest.mark.parametrize("post", [False, True], ids=["", "post-norm"])
def test_add_norm(step, post):
    model = step.plan.model
    weight, x, y = step.random(model.hidden), step.poison(model.hidden), step.random(ROOM, model.hidden)
    post_norm = step.random(model.hidden) if post else None
    residual = 100 * torch.randn(ROOM, model.hidden, device="cuda")
    residual[step.tokens :] = torch.nan
    update = y[: step.tokens].double() if post_norm is None else normalised(y[: step.tokens], post_norm, model)
    summed = residual[: step.tokens].double() + update
    step.run("dp_add_norm", post_norm, weight, residual, y, x)
    assert_rows(residual, summed, FP32_TOLERANCE)
    assert_rows(x, normalised(summed, weight, model), TOLERANCE[model.dtype])


def test_gate(step):
    model = step.plan.model
    gate_up, act = 3 * step.random(ROOM, 2 * model.intermediate), step.poison(model.intermediate)
    step.run("dp_gate", gate_up, act)
    gate, up = gate_up[: step.tokens].chunk(2, -1)
    assert_rows(act, activated(gate, model) * up.double(), TOLERANCE[model.dtype])


def test_gate_of_the_largest_values_is_finite(step):
    model = step.plan.model
    gate_up, act = torch.ones_like(step.poison(2 * model.intermediate)), step.poison(model.intermediate)
    gate_up[:, : model.intermediate : 2], gate_up[:, 1 : model.intermediate : 2] = 2.0**14, -(2.0**14)
    step.run("dp_gate", gate_up, act)
    assert torch.equal(act[: step.tokens, ::2], gate_up[: step.tokens, : model.intermediate : 2])
    assert (act[: step.tokens, 1::2] == 0).all()


def test_gather_takes_the_sampled_rows_in_their_order(step):
    model = step.plan.model
    x, last = step.random(ROOM, model.hidden), step.poison(model.hidden)
    step.run("dp_gather", x, last)
    assert_rows(last, x[step.sampled].double(), 1e-9)


def test_step_without_tokens_writes_nothing(step):
    model = step.plan.model
    idle = step_buffers(step.plan, tokens=0, samples=0)
    wide, narrow = step.random(ROOM, 2 * model.intermediate), step.random(ROOM, model.hidden)
    residual = step.poison(model.hidden, torch.float32)
    x, act = step.poison(model.hidden), step.poison(model.intermediate)
    step.launch("dp_embed", (3,), idle, step.random(model.vocab, model.hidden), residual)
    step.launch("dp_add_norm", (3,), idle, None, narrow, residual, narrow, x)
    step.launch("dp_gate", (3,), idle, wide, act)
    step.launch("dp_gather", (3,), idle, narrow, x)
    for untouched in (residual, x, act):
        assert untouched.isnan().all()


def test_the_host_computes_the_same(step, host):
    """One layer's worth of operations, each from the same inputs."""
    model, tokens = step.plan.model, step.tokens
    buffers = step.buffers.cpu()
    table, weight = step.random(model.vocab, model.hidden), step.random(model.hidden)
    residual, host_residual = step.poison(model.hidden, torch.float32), torch.empty(ROOM, model.hidden)
    step.run("dp_embed", table, residual)
    host_table, host_weight = table.cpu(), weight.cpu()
    host.dp_embed(host_table.data_ptr(), buffers.data_ptr(), host_residual.data_ptr())
    assert torch.equal(residual[:tokens].cpu(), host_residual[:tokens])

    y, x, host_x = step.random(ROOM, model.hidden), step.poison(model.hidden), torch.empty(ROOM, model.hidden)
    host_y = y.float().cpu()
    step.run("dp_add_norm", None, weight, residual, y, x)
    operands = (host_weight, host_residual, host_y, host_x)
    host.dp_add_norm(*(operand.data_ptr() for operand in operands), tokens)
    assert worst_error(x[:tokens], host_x[:tokens].double().cuda()) < TOLERANCE[model.dtype]

    gate_up, act = step.random(ROOM, 2 * model.intermediate), step.poison(model.intermediate)
    host_gate_up, host_act = gate_up.float().cpu(), torch.empty(ROOM, model.intermediate)
    step.run("dp_gate", gate_up, act)
    host.dp_gate(host_gate_up.data_ptr(), host_act.data_ptr(), tokens)
    assert worst_error(act[:tokens], host_act[:tokens].double().cuda()) < TOLERANCE[model.dtype]
