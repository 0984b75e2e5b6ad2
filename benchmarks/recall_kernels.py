"""What benchmarks.gpu_recall measures, compiled; this needs no GPU.

python -m benchmarks.recall_kernels FOLDER
"""

import subprocess
import tempfile
from pathlib import Path

from benchmarks.attention_kernels import compile_into_folder
from benchmarks.linear_kernels import LLAMA, compile_products
from dualpace.build.store import Store
from dualpace.build.units import HOST
from dualpace.plan.plan import Offload, Plan
from tests.gpu.conftest import compile_sources
from tests.gpu.recall import SOURCES, compile_twin

LAYERS, ROWS, CONTEXT = 32, 12, 131_072
BLOCKS, SLOTS, SINKS, RECENT = 256, 320, 1, 9
COPIES = Path(__file__).with_name("copy_pieces.cpp")


def recalling() -> Plan:
    """Llama-3.1-8B with 8 GiB for KV on the card, as benchmarks/specs/llama-8b-recall.yaml: twelve slow rows."""
    (group,), (pages,) = LLAMA.model.groups, LLAMA.pages
    groups = (group.model_copy(update={"layers": tuple(range(LAYERS))}),)
    return LLAMA.model_copy(
        update={
            "model": LLAMA.model.model_copy(update={"layers": LAYERS, "groups": groups, "context": CONTEXT}),
            "schedule": LLAMA.schedule.model_copy(update={"slow_rows": ROWS, "max_context": CONTEXT}),
            "pages": (
                pages.model_copy(update={"pages": ROWS * SLOTS, "pages_per_row": CONTEXT // LLAMA.attention.page_size}),
            ),
            "offload": Offload(
                mode="recall",
                host_budget=1 << 38,
                host_pages=ROWS * CONTEXT // LLAMA.attention.page_size,
                sparse_blocks=BLOCKS,
                sinks=SINKS,
                recent=RECENT,
                cache_blocks=SLOTS,
            ),
        }
    )


def compile_copies(folder: Path) -> Path:
    """copy_pieces.cpp, a library."""
    library = folder / "copies.so"
    subprocess.run(["g++", *HOST, "-shared", str(COPIES), "-o", str(library)], check=True)
    return library


def compile_all(store: Store) -> dict[str, Path]:
    """File name -> what is compiled: a layer's kernels, the products around them, and what the host does."""
    folder = Path(tempfile.mkdtemp())
    return {
        "recall.cubin": compile_sources(recalling(), store, *SOURCES),
        "products.cubin": compile_products(store),
        "twin.so": compile_twin(recalling(), folder),
        "copies.so": compile_copies(folder),
    }


if __name__ == "__main__":
    compile_into_folder(__doc__.splitlines()[0], compile_all)
