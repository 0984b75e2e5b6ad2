"""FlashInfer's kernels: which decode attention they cover."""

from dualpace.plan.plan import FlashInferKernel, Model

HEAD_DIMS = (64, 128, 256)
# Query heads per KV head: its decode kernel, which runs on CUDA cores, is the faster one for these;
DECODE_RATIOS = (1, 2)
# its prefill kernel, which runs on tensor cores, takes as many as a tile has rows.
MOST_HEADS = 16


def kernel(model: Model) -> FlashInferKernel:
    """What computes decode attention of `model` on the route `flashinfer`; "none" if nothing can."""
    if model.head_dim not in HEAD_DIMS or model.element_bytes != 2 or model.gqa_ratio > MOST_HEADS:
        return "none"
    return "decode" if model.gqa_ratio in DECODE_RATIOS else "prefill"
