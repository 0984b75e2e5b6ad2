"""What benchmarks.gpu_attention measures, compiled; this needs no GPU.

python -m benchmarks.attention_kernels FOLDER
"""

import argparse
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dualpace.build.compile import compile_libraries
from dualpace.build.headers import include_flags
from dualpace.build.store import Store
from dualpace.build.units import Library, Unit, libraries
from dualpace.plan import flashinfer
from dualpace.plan.manifest import CUDA_ENGINE
from dualpace.plan.plan import Plan
from dualpace.render.sources import render
from tests.gpu.conftest import Silent
from tests.gpu.plans import plan

TRACES: dict[str, list[int]] = json.loads((Path(__file__).parent / "traces/decode.json").read_text())
FEW = ("1 row, 32k", "8 rows bimodal", "128 rows, 1k")
# Query heads a KV head, head size, and the traces; 8 KV heads, pages of 16 tokens, bf16.
SHAPES: dict[tuple[int, int], tuple[str, ...]] = {(4, 128): tuple(TRACES)}
SHAPES |= {(r, d): FEW for d in (128, 64, 256) for r in (1, 2, 4, 5, 6, 7, 8) if (r, d) not in SHAPES}
SHAPES[16, 128] = FEW
FLASHINFER = Path(__file__).parent / "flashinfer.cu"


def layer_plan(ratio: int, head_dim: int) -> Plan:
    """A plan with one such layer: 128 rows of up to 128k tokens, more pages than there is memory for."""
    layer = plan(
        f"g{ratio}-d{head_dim}",
        dtype="bf16",
        kv_heads=8,
        ratio=ratio,
        head_dim=head_dim,
        page_size=16,
        context=131072,
        max_batch=128,
        step_tokens=2048,
        split_tokens=256,
    )
    attention = layer.attention.model_copy(update={"flashinfer": flashinfer.kernel(layer.model)})
    return layer.model_copy(update={"attention": attention})


def compile_attention(layout: Plan, store: Store) -> Path:
    """The kernels of attention alone, linked, from `store` if it has them. Raises BuildError."""
    sources = render(layout)
    engine = next(library for library in libraries(layout, sources) if library.output == CUDA_ENGINE)
    units = tuple(unit for unit in engine.units if unit.source.startswith(("cuda/attention", "cuda/kv_append")))
    kernels = Library(tool="nvcc", output=CUDA_ENGINE, units=units, flags=engine.flags)
    return compile_libraries((kernels,), sources, store, Silent())[CUDA_ENGINE]


def compile_list_builder(layout: Plan, store: Store) -> Path:
    """The list builder alone, which knows the policy of `layout`. Raises BuildError."""
    sources = render(layout)
    engine = next(library for library in libraries(layout, sources) if library.output == CUDA_ENGINE)
    units = tuple(unit for unit in engine.units if unit.source == "cuda/attention_tasks.cu")
    builder = Library(tool="nvcc", output=CUDA_ENGINE, units=units, flags=engine.flags)
    return compile_libraries((builder,), sources, store, Silent())[CUDA_ENGINE]


def compile_flashinfer(head_dim: int, sm: str, store: Store) -> Path:
    """FlashInfer's library for heads of `head_dim` in bf16, from `store` if it has it. Raises BuildError."""
    name, arch = FLASHINFER.name, f"-arch=sm_{sm}"
    flags = ("-c", "-std=c++20", "-O3", "-Xcompiler=-fPIC", arch, f"-DDP_HEAD_DIM={head_dim}")
    unit = Unit(
        tool="nvcc",
        source=name,
        object="flashinfer.o",
        label=f"{name} for heads of {head_dim}",
        flags=(*flags, *include_flags("flashinfer")),
        headers=("flashinfer",),
    )
    library = Library(tool="nvcc", output="flashinfer.so", units=(unit,), flags=("-shared", arch))
    return compile_libraries((library,), {name: FLASHINFER.read_text("utf-8")}, store, Silent())["flashinfer.so"]


def compile_all(store: Store) -> dict[str, Path]:
    """File name -> what is compiled: our kernels by shape, FlashInfer's by head size."""
    layouts = [layer_plan(*shape) for shape in SHAPES]
    sm = layouts[0].target.sm
    with ThreadPoolExecutor() as pool:
        ours = {f"{layout.name}.cubin": pool.submit(compile_attention, layout, store) for layout in layouts}
        sizes = sorted({head_dim for _, head_dim in SHAPES})
        theirs = {f"flashinfer-d{size}.so": pool.submit(compile_flashinfer, size, sm, store) for size in sizes}
        return {name: future.result() for name, future in (ours | theirs).items()}


def compile_into_folder(description: str, compile_all: Callable[[Store], dict[str, Path]]) -> None:
    """The command line of what compiles for a machine without compilers."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--store", type=Path, default=Path("build/store"), help="folder of compiled kernels")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, path in compile_all(Store(arguments.store)).items():
        shutil.copyfile(path, arguments.folder / name)


if __name__ == "__main__":
    compile_into_folder(__doc__.splitlines()[0], compile_all)
