"""What benchmarks.gpu_transfer measures, compiled; this needs no GPU.

python -m benchmarks.transfer_kernels FOLDER
"""

from pathlib import Path

from benchmarks.attention_kernels import compile_attention, compile_into_folder, layer_plan
from benchmarks.linear_kernels import LLAMA, compile_products
from dualpace.build.store import Store
from dualpace.plan.plan import Offload, Plan
from tests.gpu.conftest import compile_sources, without_flashinfer

LAYER = layer_plan(4, 128)
LAYER = LAYER.model_copy(update={"attention": without_flashinfer(LAYER)})
LAYERS, SLOW_ROWS, SLOTS = 32, 4, 256
# What is copied: blocks, and the pieces of a KV head that headwise choices would take.
UNITS = {"64 KiB": 64 << 10, "8 KiB": 8 << 10}
BLOCK_COPY = "UnitCopy<BlockQueue, 2 * kValueOffset * cfg::kElementBytes>"


def recalling() -> Plan:
    """Llama-3.1-8B's layers with four rows in host memory: lists of 1,024 units, of which 64 may wait."""
    (group,) = LLAMA.model.groups
    groups = (group.model_copy(update={"layers": tuple(range(LAYERS))}),)
    return LLAMA.model_copy(
        update={
            "model": LLAMA.model.model_copy(update={"layers": LAYERS, "groups": groups}),
            "schedule": LLAMA.schedule.model_copy(update={"slow_rows": SLOW_ROWS}),
            "offload": Offload(
                mode="recall", host_budget=1 << 36, sparse_blocks=0, sinks=1, recent=3, cache_blocks=SLOTS
            ),
        }
    )


def compile_transfer(copy: str, unit: int, store: Store) -> Path:
    """The kernel that copies units of so many bytes by `copy`, BulkCopy or VectorCopy. Raises BuildError."""
    return compile_sources(recalling(), store, "cuda/transfer.cu", edit={BLOCK_COPY: f"{copy}<BlockQueue, {unit}>"})


def compile_all(store: Store) -> dict[str, Path]:
    """File name -> what is compiled: copies by way and unit, and the products and attention beside which they run."""
    copies = {
        f"{copy}-{unit}.cubin": compile_transfer(copy, unit, store)
        for copy in ("BulkCopy", "VectorCopy")
        for unit in UNITS.values()
    }
    return copies | {
        "products.cubin": compile_products(store),
        "attention.cubin": compile_attention(LAYER, store),
    }


if __name__ == "__main__":
    compile_into_folder(__doc__.splitlines()[0], compile_all)
