"""Attention of prompt chunks on a GPU: which kernel covers which model."""

from dualpace.plan.plan import PrefillKernel

WGMMA = "90a"  # Hopper alone has these instructions
MOST_HEAD_DIM = 256


def kernel(dtype: str, head_dim: int, sm: str) -> PrefillKernel:
    """What attends prompt chunks on architecture `sm` ("" for a CPU); "tokens" where decode attention has to."""
    if not sm or dtype == "fp32" or head_dim % 16 or head_dim > MOST_HEAD_DIM:
        return "tokens"
    return "wgmma" if sm == WGMMA else "mma"
