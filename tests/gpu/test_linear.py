from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch

from dualpace.plan.plan import Plan

from .batch import DTYPES, TOLERANCE, step_buffers
from .conftest import compile_sources
from .plans import plan as small_plan
from .test_attention import worst_error
from .test_pointwise import activated, normalised

if TYPE_CHECKING:
    from dualpace.engine.device import Cubin

pytestmark = pytest.mark.gpu

FP32_TOLERANCE = 2e-5  # tensor cores cut off, rather than round, what they add up

PLANS = {
    p.name: p
    for p in (
        small_plan(
            "whole-tiles",
            dtype="bf16",
            kv_heads=8,
            ratio=4,
            head_dim=128,
            page_size=16,
            intermediate=14_336,
            vocab=2048,
            max_batch=16,
            smaller_buckets=(1, 8),
        ),
        # All inputs are one turn of the warps.
        small_plan(
            "narrow",
            dtype="bf16",
            kv_heads=2,
            ratio=4,
            head_dim=64,
            page_size=16,
            intermediate=1024,
            vocab=1024,
            max_batch=16,
            smaller_buckets=(1, 8),
        ),
        # A head is an odd number of strips.
        small_plan(
            "biased",
            dtype="bf16",
            kv_heads=2,
            ratio=3,
            head_dim=80,
            page_size=8,
            intermediate=320,
            vocab=1003,
            windows=(0, 100),
            qkv_bias=True,
            norm_offset=1.0,
            max_batch=5,
            smaller_buckets=(2,),
        ),
        # No width is a multiple of a tile or of what a warp takes at a time, no bucket one of eight columns.
        small_plan(
            "ragged",
            dtype="fp16",
            kv_heads=2,
            ratio=3,
            head_dim=88,
            page_size=16,
            intermediate=200,
            vocab=1003,
            activation="gelu_tanh",
            qkv_bias=True,
            post_norms=True,
            max_batch=12,
            smaller_buckets=(1, 3, 8),
        ),
    )
}
CASES = [
    (plan, program.rows, rows)
    for plan in PLANS.values()
    for program in plan.schedule.programs
    if program.kind == "decode"
    for rows in sorted({1, program.rows // 2 + 1, program.rows})
]


@dataclass(frozen=True)
class Products:
    """The products of a step of `rows` rows in a bucket of `bucket`; x beyond the rows is NaN."""

    plan: Plan
    cubin: "Cubin"
    bucket: int
    rows: int

    @property
    def columns(self) -> int:
        """Of qkv."""
        model = self.plan.model
        return (model.heads + 2 * model.kv_heads) * model.head_dim

    @property
    def rotated(self) -> bool:
        """Whether the product of qkv rotates and appends."""
        return not self.plan.model.qk_norm and self.plan.model.head_dim % 16 == 0

    @property
    def slots(self) -> list[int]:
        """Where the KV of a row goes, no two in a page."""
        size = self.plan.attention.page_size
        return [(self.bucket - row) * size + row % size for row in range(self.rows)]

    def random(self, *shape: int) -> torch.Tensor:
        """Normal values in the model's dtype."""
        return torch.randn(*shape, device="cuda").to(DTYPES[self.plan.model.dtype])

    def inputs(self, width: int) -> torch.Tensor:
        """x [bucket][width]."""
        x = self.random(self.bucket, width)
        x[self.rows :] = torch.nan
        return x

    def squares(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums of squares of each row of x, and the scale [bucket][1] that its norm divides by."""
        model = self.plan.model
        squares = 100 * torch.rand(self.bucket, model.hidden // 16, device="cuda")
        squares[self.rows :] = torch.nan
        return squares, (squares.double().sum(-1, keepdim=True) / model.hidden + model.norm_eps).rsqrt()

    def weight(self, out: int, width: int) -> torch.Tensor:
        """A weight that makes outputs of about 1."""
        return self.random(out, width) / width**0.5

    def poison(self, width: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """NaN for every row, and for one more that must stay as it is."""
        shape = self.bucket + 1, width
        return torch.full(shape, torch.nan, device="cuda", dtype=dtype or DTYPES[self.plan.model.dtype])

    def run(self, name: str, *operands: torch.Tensor | int | None, sampled: list[int] | None = None) -> None:
        """Launch the product `name` of the bucket."""
        kernel = f"dp_linear_{name}_{self.bucket}"
        rows = list(range(self.rows)) if sampled is None else sampled
        slots = [self.slots] * len(self.plan.model.groups)
        step = step_buffers(self.plan, tokens=self.rows, samples=len(rows), sample_index=rows, slot=slots)
        self.cubin.launch(kernel, (self.cubin.constant(f"{kernel}_ctas"),), step, *operands, overlap=True)

    def check(self, out: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
        """`out` begins with the rows of `expected`, and the rest of it is still poison."""
        assert worst_error(out[: self.rows], expected[: self.rows]) < tolerance
        assert out[self.rows :].isnan().all()


@pytest.fixture(scope="module")
def cubins(store):
    from dualpace.engine.device import Cubin

    sources = ("cuda/linear.cu", "cuda/pointwise.cu")
    return {name: Cubin(compile_sources(plan, store, *sources)) for name, plan in PLANS.items()}


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0].name}-{case[2]}-of-{case[1]}")
def products(request, cubins):
    torch.manual_seed(0)
    plan, bucket, rows = request.param
    return Products(plan, cubins[plan.name], bucket, rows)


def test_qkv(products):
    model, columns, half = products.plan.model, products.columns, products.plan.model.head_dim // 2
    w, x, qkv = products.weight(columns, model.hidden), products.inputs(model.hidden), products.poison(columns)
    bias = products.random(columns) if model.qkv_bias else None
    squares, scale = products.squares()
    expected = scale * (x.double() @ w.double().T) + (0 if bias is None else bias.double())
    if not products.rotated:
        products.run("qkv", w, x, squares, bias, qkv)
        products.check(qkv, expected, TOLERANCE[model.dtype])
        return
    size = products.plan.attention.page_size
    pool = torch.full((products.bucket + 1, 2, model.kv_heads, size, model.head_dim), torch.nan, device="cuda")
    pool = pool.to(qkv.dtype)
    angles = torch.randn(products.bucket, half, 2, device="cuda")
    products.run("qkv", w, x, squares, bias, len(model.groups) - 1, angles, qkv, pool)
    heads = expected[: products.rows].unflatten(1, (-1, model.head_dim))
    queries, keys, values = heads.split((model.heads, model.kv_heads, model.kv_heads), dim=1)
    cosine, sine = angles[: products.rows, None].double().unbind(-1)

    def rotate(x):
        low, high = x.chunk(2, -1)
        return torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1)

    products.check(qkv[:, : model.heads * model.head_dim], rotate(queries).flatten(1), TOLERANCE[model.dtype])
    slots = torch.tensor(products.slots, device="cuda")
    appended = pool[slots // size, :, :, slots % size].clone()
    assert worst_error(appended[:, 0], rotate(keys)) < TOLERANCE[model.dtype]
    assert worst_error(appended[:, 1], values) < TOLERANCE[model.dtype]
    pool[slots // size, :, :, slots % size] = torch.nan
    assert pool.isnan().all()


@pytest.mark.parametrize("name", ["o", "down"])
def test_products_that_go_to_the_residual(products, name):
    model = products.plan.model
    width = model.heads * model.head_dim if name == "o" else model.intermediate
    w, x = products.weight(model.hidden, width), products.inputs(width)
    expected = x.double() @ w.double().T
    if model.post_norms:
        y = products.poison(model.hidden)
        products.run(name, w, x, y)
        products.check(y, expected, TOLERANCE[model.dtype])
        return
    residual, norm = products.poison(model.hidden, torch.float32), products.random(model.hidden)
    residual[: products.rows] = before = torch.randn(products.rows, model.hidden, device="cuda")
    expected = before.double() + expected[: products.rows]
    products.run(name, w, x, residual, None, None, None)
    products.check(residual, expected, FP32_TOLERANCE)
    residual[: products.rows] = before
    x_of_norm, squares = products.poison(model.hidden), products.poison(model.hidden // 16, torch.float32)
    products.run(name, w, x, residual, norm, x_of_norm, squares)
    products.check(residual, expected, FP32_TOLERANCE)
    products.check(x_of_norm, expected * (norm.double() + model.norm_offset), TOLERANCE[model.dtype])
    products.check(squares, expected.square().unflatten(1, (-1, 16)).sum(-1), FP32_TOLERANCE)


def test_gated_product(products):
    model = products.plan.model
    w, x = products.weight(2 * model.intermediate, model.hidden), products.inputs(model.hidden)
    squares, scale = products.squares()
    for given, factor in ((None, 1), (squares, scale)):
        act = products.poison(model.intermediate)
        products.run("gate_up", w, x, given, act)
        gate, up = (factor * (x.double() @ w.double().T)).chunk(2, -1)
        products.check(act, activated(gate, model) * up, TOLERANCE[model.dtype])


def test_logits_are_of_the_sampled_rows_and_not_rounded(products):
    model = products.plan.model
    w, x = products.weight(model.vocab, model.hidden), products.inputs(model.hidden)
    squares, scale = products.squares()
    sampled = list(range(products.rows))[::-1]
    logits = products.poison(model.vocab, torch.float32)
    products.run("head", w, x, squares, logits, sampled=sampled)
    products.check(logits, (scale * (x.double() @ w.double().T))[sampled], FP32_TOLERANCE)


def test_a_deferred_norm_is_a_norm(products):
    model = products.plan.model
    residual, norm = 100 * torch.randn(products.bucket, model.hidden, device="cuda"), products.random(model.hidden)
    x, squares = products.poison(model.hidden), products.poison(model.hidden // 16, torch.float32)
    step = step_buffers(products.plan, tokens=products.rows)
    products.cubin.launch("dp_defer_norm", (3,), step, norm, residual, x, squares)
    w, logits = products.weight(model.vocab, model.hidden), products.poison(model.vocab, torch.float32)
    products.run("head", w, x, squares, logits)
    expected = normalised(residual, norm, model) @ w.double().T
    products.check(logits, expected, TOLERANCE[model.dtype])
    assert x[products.rows :].isnan().all()
    assert squares[products.rows :].isnan().all()


def test_a_row_does_not_depend_on_the_rows_beside_it(products):
    model = products.plan.model
    w, x = products.weight(model.vocab, model.hidden), products.inputs(model.hidden)
    together, alone, again = (products.poison(model.vocab, torch.float32) for _ in range(3))
    products.run("head", w, x, None, together)
    row = products.rows - 1
    kept = x[row].clone()
    x[:] = torch.inf
    x[row] = kept
    products.run("head", w, x, None, alone)
    products.run("head", w, x, None, again)
    assert torch.equal(together[row], alone[row])
    assert torch.equal(alone.view(torch.int32), again.view(torch.int32))
