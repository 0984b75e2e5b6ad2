"""What benchmarks.gpu_prefill measures, compiled; this needs no GPU.

python -m benchmarks.prefill_kernels FOLDER
"""

from pathlib import Path

from benchmarks.attention_kernels import compile_into_folder
from dualpace.build.compile import compile_libraries
from dualpace.build.headers import include_flags
from dualpace.build.store import Store
from dualpace.build.units import Library, Unit, libraries
from dualpace.plan.manifest import CUDA_CUBINS, CUDA_ENGINE
from dualpace.plan.plan import Plan, PrefillKernel
from dualpace.render.sources import render
from tests.gpu.conftest import Silent
from tests.gpu.plans import plan

KERNELS: tuple[PrefillKernel, ...] = ("wgmma", "mma")
UNITS = tuple(f"cuda/{name}.cu" for name in ("kv_append", "prefill", "prefill_tasks"))
FLASHINFER = Path(__file__).parent / "flashinfer_prefill.cu"
# As FlashInfer compiles it for itself.
FLASHINFER_FLAGS = ("-DNDEBUG", "--expt-relaxed-constexpr", "-use_fast_math", "-DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED")


def layer_plan(prefill: PrefillKernel) -> Plan:
    """A plan with one layer of 32/8 heads of 128 in bf16, 32 rows of up to 128k tokens and steps of 32k tokens."""
    return plan(
        f"prefill-{prefill}",
        dtype="bf16",
        kv_heads=8,
        ratio=4,
        head_dim=128,
        page_size=16,
        context=131072,
        max_batch=32,
        step_tokens=32768,
        prefill=prefill,
    )


def compile_prefill(layout: Plan, store: Store) -> dict[str, Path]:
    """The kernels of prefill alone, by their library in a bundle. Raises BuildError."""
    sources = render(layout)
    wanted = [
        library.model_copy(update={"units": tuple(unit for unit in library.units if unit.source in UNITS)})
        for library in libraries(layout, sources)
        if library.output in CUDA_CUBINS
    ]
    return compile_libraries(wanted, sources, store, Silent())


def compile_flashinfer(sm: str, store: Store) -> Path:
    """FlashInfer's library. Raises BuildError."""
    name, arch = FLASHINFER.name, f"-arch=sm_{sm}"
    flags = ("-c", "-std=c++20", "-O3", "-Xcompiler=-fPIC", arch, *FLASHINFER_FLAGS, *include_flags("flashinfer"))
    unit = Unit(tool="nvcc", source=name, object="prefill.o", label=name, flags=flags, headers=("flashinfer",))
    library = Library(tool="nvcc", output="prefill.so", units=(unit,), flags=("-shared", arch))
    return compile_libraries((library,), {name: FLASHINFER.read_text("utf-8")}, store, Silent())["prefill.so"]


def compile_all(store: Store) -> dict[str, Path]:
    """File name -> what is compiled: our kernels, an engine's and prefill's own each, and FlashInfer's."""
    files = {}
    for kernel in KERNELS:
        for output, path in compile_prefill(layer_plan(kernel), store).items():
            files[f"{kernel}-{'engine' if output == CUDA_ENGINE else 'prefill'}.cubin"] = path
    return files | {"flashinfer.so": compile_flashinfer(layer_plan(KERNELS[0]).target.sm, store)}


if __name__ == "__main__":
    compile_into_folder(__doc__.splitlines()[0], compile_all)
