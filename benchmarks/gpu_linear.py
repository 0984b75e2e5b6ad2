"""Products of few rows on the GPU: time and bandwidth beside cuBLAS's, alone and in a layer.

    python -m benchmarks.gpu_linear [-o benchmarks/results/gpu_linear.json]

The shapes are Llama-3.1-8B's in bf16. A time is of one product, of a graph of products with weights that do not fit
the L2 cache all together; ours overlap by programmatic dependent launch, as they do in a step. A layer is all
operations but attention, in their order: our products do them all, cuBLAS's have kernels for the others between them.
The floor is the bytes of weights over the read bandwidth of the target.
"""

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_attention import READ_BANDWIDTH, ROTATED_BYTES
from benchmarks.linear_kernels import LLAMA, ROWS, compile_products
from benchmarks.machine import gpu_machine, save
from dualpace.build.store import Store
from dualpace.engine.calibrate import graph_seconds
from dualpace.engine.device import Cubin
from tests.gpu.batch import step_buffers

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
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    cubin = Cubin(compile_products(Store(arguments.store)))
    steps = [Step(cubin, rows) for rows in ROWS]
    report = {
        "machine": gpu_machine(),
        "read_bytes_per_s": READ_BANDWIDTH,
        "products": measure_products(steps),
        "layers": measure_layers(steps),
    }
    save(report, arguments.output)


if __name__ == "__main__":
    main()
