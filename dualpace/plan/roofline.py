"""Counts and the roofline: parameters, bytes, and the least time that a decode step can take.

floor = max(weight bytes read / bandwidth, matrix-product FLOP / FLOP/s) + KV bytes read / bandwidth. Weights are read
once a step whatever the rows; the embedding table is only gathered from, unless it is the output head too.
"""

from dualpace.plan.plan import Floor, Model, Target


def matrix_elements(model: Model) -> int:
    """Elements of the weights that a token is multiplied with: the layers' linear weights and the output head."""
    attention = (2 * model.heads + 2 * model.kv_heads) * model.head_dim * model.hidden
    mlp = 3 * model.intermediate * model.hidden
    return model.layers * (attention + mlp) + model.vocab * model.hidden


def vector_elements(model: Model) -> int:
    """Elements of norms and biases."""
    norms = (4 if model.post_norms else 2) * model.hidden
    bias = (model.heads + 2 * model.kv_heads) * model.head_dim if model.qkv_bias else 0
    qk_norms = 2 * model.head_dim if model.qk_norm else 0
    return model.layers * (norms + bias + qk_norms) + model.hidden


def parameters(model: Model) -> int:
    """Distinct parameters of the model."""
    embedding = 0 if model.tie_embeddings else model.vocab * model.hidden
    return matrix_elements(model) + vector_elements(model) + embedding


def kv_token_bytes(model: Model) -> int:
    """Bytes of K and V that one token has in one layer."""
    return 2 * model.kv_heads * model.head_dim * model.element_bytes


def kv_bytes_read(model: Model, context: int) -> int:
    """Bytes of KV that decoding one token after `context` tokens reads; a window bounds what its layers read."""
    seen = sum(len(group.layers) * min(context, group.window or context) for group in model.groups)
    return seen * kv_token_bytes(model)


def floor(model: Model, target: Target, rows: int, context: int) -> Floor:
    """The least time of a decode step of `rows` rows with `context` tokens of context each, over all cards."""
    bandwidth = target.read_bandwidth * target.count
    weights = (matrix_elements(model) + vector_elements(model)) * model.element_bytes / bandwidth
    flops = 2.0 * matrix_elements(model) * rows / (target.flops * target.count)
    kv = rows * kv_bytes_read(model, context) / bandwidth
    return Floor(
        rows=rows,
        context=context,
        seconds=max(weights, flops) + kv,
        weight_seconds=weights,
        flop_seconds=flops,
        kv_seconds=kv,
        bound="bandwidth" if weights >= flops else "compute",
    )
