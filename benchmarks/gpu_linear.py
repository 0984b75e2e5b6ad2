"""Products on the GPU: ours of few rows beside cuBLAS's, alone and in a layer, and cuBLAS's of more.

    python -m benchmarks.gpu_linear [--library] [-o benchmarks/results/gpu_linear.json]

The shapes are Llama-3.1-8B's in bf16. A time is of one product, of a graph of products with weights that do not fit
the L2 cache all together; ours overlap by programmatic dependent launch, as they do in a step. A layer is all
operations but attention, in their order: our products do them all, cuBLAS's have kernels for the others between them.
The floor is the bytes of weights over the read bandwidth of the target.

Products of the library alone have the rows of the step programs that it serves, and are timed after they have run for
a while: so many rows draw so much power that clocks fall. `--library` reads these anew and keeps the others.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_attention import READ_BANDWIDTH, ROTATED_BYTES
from benchmarks.linear_kernels import LLAMA, ROWS, compile_products
from benchmarks.machine import gpu_machine, save
from benchmarks.pages import ROOT
from dualpace.build.store import Store
from dualpace.engine.calibrate import graph_seconds
from dualpace.engine.device import Cubin
from dualpace.lint.runner import lint_file
from dualpace.plan.program import STREAMED_ROWS
from tests.gpu.batch import step_buffers

SPEC = ROOT / "benchmarks/specs/llama-8b-h200.yaml"
# How long a product of the library runs before it is timed, and is timed.
SETTLE_SECONDS, TIMED_SECONDS = 0.3, 0.2
LAYERS = 12
COLUMNS = (LLAMA.model.heads + 2 * LLAMA.model.kv_heads) * LLAMA.model.head_dim
# Weight -> outputs and inputs.
SHAPES = {
    "qkv": (COLUMNS, LLAMA.model.hidden),
    "o": (LLAMA.model.hidden, LLAMA.model.heads * LLAMA.model.head_dim),
    "gate_up": (2 * LLAMA.model.intermediate, LLAMA.model.hidden),
    "down": (LLAMA.model.hidden, LLAMA.model.intermediate),
    "head": (LLAMA.model.vocab, LLAMA.model.hidden),
}
OF_A_LAYER = ("qkv", "o", "gate_up", "down")


def bytes_of(name: str) -> int:
    """Of one weight."""
    out, width = SHAPES[name]
    return out * width * LLAMA.model.element_bytes


def weight(name: str) -> torch.Tensor:
    """A random weight whose outputs are about 1."""
    out, width = SHAPES[name]
    return random(out, width) / math.sqrt(width)


def random(*shape: int) -> torch.Tensor:
    """Normal values in the model's dtype."""
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


class Step:
    """The buffers of a decode step of `rows` rows, and the kernels that work on them."""

    def __init__(self, cubin: Cubin, rows: int) -> None:
        model, attention = LLAMA.model, LLAMA.attention
        self.cubin = cubin
        self.rows = rows
        slots = [[row * attention.page_size for row in range(rows)]]
        self.step = step_buffers(LLAMA, tokens=rows, samples=rows, sample_index=range(rows), slot=slots)
        self.pool = random(rows, 2, model.kv_heads, attention.page_size, model.head_dim)
        self.residual = torch.randn(rows, model.hidden, device="cuda")
        self.norm = random(model.hidden)
        self.x, self.y = random(rows, model.hidden), random(rows, model.hidden)
        self.qkv, self.attn = random(rows, COLUMNS), random(rows, SHAPES["o"][1])
        self.gate_up, self.act = random(rows, 2 * model.intermediate), random(rows, model.intermediate)
        self.logits = torch.empty(rows, model.vocab, device="cuda")
        self.squares = torch.rand(rows, model.hidden // 16, device="cuda")
        self.angles = torch.ones(rows, model.head_dim, device="cuda")
        self.inputs = {"qkv": self.x, "o": self.attn, "gate_up": self.x, "down": self.act, "head": self.x}

    def launch(self, kernel: str, ctas: int, *operands: torch.Tensor | int | None) -> None:
        """A kernel of the step."""
        self.cubin.launch(kernel, (ctas,), self.step, *operands, overlap=True)

    def own(self, name: str, w: torch.Tensor) -> None:
        """Our product, with what follows it in a step and the norms deferred."""
        x = self.inputs[name]
        deferred = (self.residual, self.norm, self.x, self.squares)
        operands = {
            "qkv": (self.squares, None, 0, self.angles, self.qkv, self.pool),
            "o": deferred,
            "gate_up": (self.squares, self.act),
            "down": deferred,
            "head": (self.squares, self.logits),
        }
        kernel = f"dp_linear_{name}_{self.rows}"
        self.launch(kernel, self.cubin.constant(f"{kernel}_ctas"), w, x, *operands[name])

    def cublas(self, name: str, w: torch.Tensor) -> None:
        """Torch's product."""
        outputs = {"qkv": self.qkv, "o": self.y, "gate_up": self.gate_up, "down": self.y}
        if name == "head":
            torch.mm(self.x, w.T, out_dtype=torch.float32, out=self.logits)
        else:
            torch.mm(self.inputs[name], w.T, out=outputs[name])

    def append(self) -> None:
        """Rotary embedding and KV."""
        ctas = self.rows * self.cubin.constant("dp_kv_append_ctas_per_token")
        self.launch("dp_kv_append", ctas, 0, self.angles, None, None, self.qkv, self.pool)

    def own_layer(self, weights: dict[str, torch.Tensor]) -> None:
        """A layer with our products."""
        for name in OF_A_LAYER:
            self.own(name, weights[name])

    def cublas_layer(self, weights: dict[str, torch.Tensor]) -> None:
        """A layer with torch's products."""
        add_norm = ("dp_add_norm", self.rows, None, self.norm, self.residual, self.y, self.x)
        self.cublas("qkv", weights["qkv"])
        self.append()
        self.cublas("o", weights["o"])
        self.launch(*add_norm)
        self.cublas("gate_up", weights["gate_up"])
        self.launch("dp_gate", self.rows * 7, self.gate_up, self.act)
        self.cublas("down", weights["down"])
        self.launch(*add_norm)


def seconds(runs: list[Callable[[Any], object]], items: list[Any]) -> list[float]:
    """Seconds of one of each of `runs`, in a graph of it over `items`; the graphs take turns."""

    def over_items(run: Callable[[Any], object]) -> Callable[[], None]:
        def body() -> None:
            for item in items:
                run(item)

        return body

    return [found / len(items) for found in graph_seconds([over_items(run) for run in runs])]


def measure_products(steps: list[Step]) -> list[dict[str, Any]]:
    """Every weight at every number of rows."""
    results = []
    for name in SHAPES:
        weights = [weight(name) for _ in range(max(2, ROTATED_BYTES // bytes_of(name)))]
        items = weights * (-(-16 // len(weights)) if name != "head" else 2)
        for step in steps:
            own, cublas = seconds([partial(step.own, name), partial(step.cublas, name)], items)
            figures = {
                "weight": name,
                "rows": step.rows,
                "weight_bytes": bytes_of(name),
                "floor_s": bytes_of(name) / READ_BANDWIDTH,
                "own_s": own,
                "cublas_s": cublas,
            }
            results.append(figures)
            print(product_line(figures), flush=True)
    return results


def library_rows() -> list[tuple[int, bool]]:
    """Rows of the library's products in the step programs of SPEC, and whether the head's product has as many."""
    plan = lint_file(SPEC, ROOT).plan
    assert plan is not None
    programs = plan.schedule.programs
    rows = {program.tokens for program in programs if program.tokens > STREAMED_ROWS}
    return [(n, any(program.samples == n for program in programs)) for n in sorted(rows)]


def measure_library() -> Iterator[dict[str, Any]]:
    """Every weight at every number of rows of the library's."""
    for name in SHAPES:
        out, width = SHAPES[name]
        weights = [weight(name) for _ in range(max(2, ROTATED_BYTES // bytes_of(name)))]
        for rows, sampled in library_rows():
            if name == "head" and not sampled:
                continue
            x = random(rows, width)
            y = torch.empty(rows, out, dtype=torch.float32 if name == "head" else x.dtype, device="cuda")
            seconds = sustained(x, weights, y)
            rate = 2 * out * width * rows / seconds
            print(f"{name:8} {rows:5} rows  cuBLAS {seconds * 1e6:7.1f} us {rate / 1e12:4.0f} TFLOP/s", flush=True)
            yield {"weight": name, "rows": rows, "weight_bytes": bytes_of(name), "cublas_s": seconds}


def sustained(x: torch.Tensor, weights: list[torch.Tensor], y: torch.Tensor) -> float:
    """Seconds of a product of x with each of `weights` in turn, when that has gone on for a while."""

    def products() -> None:
        for w in weights:
            if y.dtype == x.dtype:
                torch.mm(x, w.T, out=y)
            else:
                torch.mm(x, w.T, out_dtype=y.dtype, out=y)

    (once,) = graph_seconds([products], repeats=5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        products()
    for _ in range(math.ceil(SETTLE_SECONDS / once)):
        graph.replay()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    replays = math.ceil(TIMED_SECONDS / once)
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / replays / len(weights)


def measure_layers(steps: list[Step]) -> list[dict[str, Any]]:
    """A layer without attention at every number of rows."""
    layers = [{name: weight(name) for name in OF_A_LAYER} for _ in range(LAYERS)]
    results = []
    for step in steps:
        own, cublas = seconds([step.own_layer, step.cublas_layer], layers)
        figures = {
            "rows": step.rows,
            "floor_s": sum(map(bytes_of, OF_A_LAYER)) / READ_BANDWIDTH,
            "own_s": own,
            "cublas_s": cublas,
        }
        results.append(figures)
        print(layer_line(figures), flush=True)
    return results


def product_line(figures: dict[str, Any]) -> str:
    """A line of the table."""
    own, cublas, size = figures["own_s"], figures["cublas_s"], figures["weight_bytes"]
    return (
        f"{figures['weight']:8} {figures['rows']:2} rows  "
        f"floor {figures['floor_s'] * 1e6:6.1f} us  own {own * 1e6:6.1f} us {size / own / 1e9:5.0f} GB/s  "
        f"cuBLAS {cublas * 1e6:6.1f} us {size / cublas / 1e9:5.0f} GB/s"
    )


def layer_line(figures: dict[str, Any]) -> str:
    """A line of the table."""
    own, cublas, floor = (figures[name] * 1e6 for name in ("own_s", "cublas_s", "floor_s"))
    return f"layer    {figures['rows']:2} rows  floor {floor:6.1f} us  own {own:6.1f} us  cuBLAS {cublas:6.1f} us"


def main() -> None:
    """Compile, measure, print a table and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/gpu_linear.json"))
    parser.add_argument("--store", type=Path, default=Path("build/store"), help="folder of compiled kernels")
    parser.add_argument("--library", action="store_true", help="read the library's products of more rows alone")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    if arguments.library:
        kept = json.loads(arguments.output.read_text(encoding="utf-8"))
        save(kept | {"library": list(measure_library())}, arguments.output)
        return
    cubin = Cubin(compile_products(Store(arguments.store)))
    steps = [Step(cubin, rows) for rows in ROWS]
    report = {
        "machine": gpu_machine(),
        "read_bytes_per_s": READ_BANDWIDTH,
        "products": measure_products(steps),
        "layers": measure_layers(steps),
        "library": list(measure_library()),
    }
    save(report, arguments.output)


if __name__ == "__main__":
    main()
