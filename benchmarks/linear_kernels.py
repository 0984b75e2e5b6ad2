"""The deployment whose products benchmarks.gpu_linear measures, and others measure beside; this needs no GPU."""

from pathlib import Path

from dualpace.build.store import Store
from tests.gpu.conftest import compile_sources
from tests.gpu.plans import plan

ROWS = (1, 2, 4, 8, 16)
LLAMA = plan(
    "llama-3.1-8b",
    dtype="bf16",
    kv_heads=8,
    ratio=4,
    head_dim=128,
    intermediate=14_336,
    vocab=128_256,
    page_size=16,
    max_batch=ROWS[-1],
    smaller_buckets=ROWS[:-1],
)


def compile_products(store: Store) -> Path:
    """The products, and what is between them in a layer. Raises BuildError."""
    return compile_sources(LLAMA, store, "cuda/linear.cu", "cuda/pointwise.cu", "cuda/kv_append.cu")
