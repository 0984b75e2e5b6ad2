"""What a step is expected to take, from measurements of its parts: an estimate, where a floor is a bound.

    step = matrix products + attention + all other kernels + one launch of the next step

Every figure stands below with its source. A target on which these parts were not measured gets no forecast. Where a
size lies between two measured ones, time is interpolated; below them the line through the nearest two goes on, above
them the rate of the largest is kept.
"""

import json
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import groupby, pairwise

from dualpace.plan.attention_cost import route_taken, seen_keys, slices
from dualpace.plan.plan import Attention, AttentionPolicy, Floor, Forecast, ForecastCell, Model, Part, Target
from dualpace.plan.program import STREAMED_ROWS, Op, buffers, defers_norms, rotates, step_program
from dualpace.plan.roofline import prompt_attention

Points = tuple[tuple[float, float], ...]

TARGET, DTYPE = "h200", "bf16"

# Products of step programs: elements of a weight, rows and seconds. Ours, up to STREAMED_ROWS rows, with what follows
# them; cuBLAS's on a card that has been busy. Written by `python -m benchmarks.linear_page`.
PRODUCTS = files("dualpace") / "plan" / "products" / f"{TARGET}.json"
# Causal attention of prompts, in FLOP/s: that of all chunks of 32,768 tokens in benchmarks/results/gpu_prefill.json.
PROMPT_ATTENTION_FLOPS = 596e12
# An empty kernel in a graph, and the rate, read and written together, at which a copy moves memory.
KERNEL_SECONDS = 0.96e-6
COPY_BANDWIDTH = 4.275e12
# A step whose last node launches the next.
LAUNCH_SECONDS = 5.7e-6


def forecast(
    model: Model,
    target: Target,
    attention: Attention,
    policy: AttentionPolicy | None,
    chunk: int,
    floors: Sequence[Floor],
) -> Forecast:
    """The forecast of the operating points of `floors`, prompts being cut into chunks of `chunk` tokens."""
    routes = sorted({floor.route for floor in floors})
    for reason in _unmeasured(model, target, policy, routes):
        return Forecast(basis=reason, cells=())
    assert policy is not None  # or nothing would have been measured
    basis = "parts measured on one H200: products, attention, empty kernels, copies, launches"
    steps = _Steps(model, attention, policy)
    return Forecast(basis=basis, cells=tuple(_cell(steps, chunk, floor) for floor in floors))


def _unmeasured(model: Model, target: Target, policy: AttentionPolicy | None, routes: Sequence[str]) -> Iterator[str]:
    """Why a forecast would be an invention."""
    if target.name != TARGET:
        yield f"no kernel was measured on {target.name}"
    if target.count > 1:
        yield "what cards exchange was not measured"
    if model.dtype != DTYPE:
        yield f"kernels were measured in {DTYPE}, not in {model.dtype}"
    if policy is None or not policy.measured:
        heads = f"heads of {model.head_dim}, {model.gqa_ratio} to a KV head"
        yield f"attention with {heads} was not measured: `dualpace calibrate` measures it"
    if policy is not None and policy.flashinfer is None and "flashinfer" in routes:
        yield "the flashinfer route was not measured"


@cache
def measured_products() -> dict[int, Points]:
    """By rows: elements of a weight, and the seconds that a product with it takes."""
    found = sorted(json.loads(PRODUCTS.read_text(encoding="utf-8")), key=lambda each: (each["rows"], each["elements"]))
    return {
        rows: tuple((each["elements"], each["seconds"]) for each in products)
        for rows, products in groupby(found, key=lambda each: each["rows"])
    }


class _Product:
    """A matrix product with `elements` weights."""

    def __init__(self, elements: int) -> None:
        self._measured = [(rows, _interpolated(points, elements)) for rows, points in measured_products().items()]

    def seconds(self, rows: int) -> float:
        """Seconds with `rows` rows."""
        return _interpolated(self._measured, rows)


class _Steps:
    """Expected seconds of the parts of `model`'s steps, from the operations of its step program."""

    def __init__(self, model: Model, attention: Attention, policy: AttentionPolicy) -> None:
        self.model, self._attention, self._policy = model, attention, policy
        self._products: list[tuple[int, str, _Product]] = []
        self._others: list[tuple[int, Op, list[tuple[str, int]]]] = []
        widths = buffers(model)
        # All layers are alike, so one of them is enough.
        for op in step_program(model.model_copy(update={"layers": 1})):
            times = model.layers if op.layer == 0 else 1
            operands = [widths[name] for name in (*op.inputs, *op.outputs) if name in widths]
            if op.kind == "linear":
                (leading, inputs), (_, outputs) = operands
                self._products.append((times, leading, _Product(inputs * outputs)))
            elif op.kind != "attention":
                self._others.append((times, op, operands))

    def products(self, tokens: int, sampled: int) -> float:
        """Matrix products of `tokens` tokens, `sampled` of which get logits."""
        rows = {"T": tokens, "S": sampled}
        return sum(times * product.seconds(rows[leading]) for times, leading, product in self._products)

    def decode_attention(self, rows: int, context: int) -> float:
        """Attention of a decode step, each layer group by the route that it takes."""
        base, count = self._attention.split_tokens, slices(self.model)
        seconds = 0.0
        for group in self.model.groups:
            seen = seen_keys(group, rows, context)
            choice = route_taken(self._policy, self._attention.route, seen, count, base)
            seconds += len(group.layers) * choice.seconds
        return seconds

    def others(self, tokens: int, sampled: int) -> float:
        """Everything but products and attention, and what our products do on the way."""
        rows, seconds = {"T": tokens, "S": sampled}, 0.0
        for times, op, operands in self._others:
            if tokens > STREAMED_ROWS or not _on_the_way(op, self.model):
                moved = sum(rows[leading] * width for leading, width in operands) * self.model.element_bytes
                seconds += times * (KERNEL_SECONDS + moved / COPY_BANDWIDTH)
        return seconds


def _on_the_way(op: Op, model: Model) -> bool:
    """Whether a product of ours does `op`, in programs that have these."""
    done = {"gate": True, "gather": True, "rope_append": rotates(model), "add_norm": defers_norms(model)}
    return done.get(op.kind, False)


def _cell(steps: _Steps, chunk: int, point: Floor) -> ForecastCell:
    rows, context = point.rows, point.context
    parts: dict[Part, float] = {
        "products": steps.products(rows, rows),
        "attention": steps.decode_attention(rows, context),
        "other kernels": steps.others(rows, rows),
        "launch": LAUNCH_SECONDS,
    }
    prefill = _prefill(steps, chunk, rows, context)
    seconds = sum(parts.values())
    return ForecastCell(
        rows=rows,
        context=context,
        seconds=seconds,
        product_seconds=parts["products"],
        attention_seconds=parts["attention"],
        other_seconds=parts["other kernels"],
        launch_seconds=parts["launch"],
        bound=_largest(parts),
        ttft_seconds=sum(prefill.values()),
        ttft_bound=_largest(prefill),
        tokens_per_second=rows / seconds,
    )


def _prefill(steps: _Steps, chunk: int, rows: int, context: int) -> dict[Part, float]:
    """`rows` prompts of `context` tokens, one after the other."""
    full, rest = divmod(rows * context, chunk)
    chunks = [(full, chunk), (1, rest)] if rest else [(full, chunk)]
    count = full + (rest > 0)
    sampled = -(-rows // count)
    pairs = rows * prompt_attention(steps.model, context, chunk).flops
    return {
        "products": sum(n * steps.products(tokens, sampled) for n, tokens in chunks),
        "attention": pairs / PROMPT_ATTENTION_FLOPS,
        "other kernels": sum(n * steps.others(tokens, sampled) for n, tokens in chunks),
        "launch": count * LAUNCH_SECONDS,
    }


def _largest(parts: dict[Part, float]) -> Part:
    return max(parts, key=lambda part: parts[part])


def _interpolated(points: Sequence[tuple[float, float]], x: float) -> float:
    """Piecewise linear in `points`, which ascend: the first line goes on below them, the last one's rate above."""
    if x >= points[-1][0]:
        return points[-1][1] * x / points[-1][0]
    (x0, y0), (x1, y1) = next(line for line in pairwise(points) if x <= line[1][0])
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
