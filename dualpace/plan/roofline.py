"""Counts and the roofline: parameters, bytes, and the least time that decode steps and prompts can take.

A floor is the sum over operations of max(bytes / bandwidth, FLOP / FLOP/s). For a decode step that is

    max(weight bytes / bandwidth, matrix-product FLOP / FLOP/s) + max(KV bytes / bandwidth, attention FLOP / FLOP/s)

as all matrix products have the same FLOP a byte; for prompts it is the same for every chunk. Weights are read once a
step; an embedding table is only gathered from, unless it is the output head too. A multiply-add is two FLOP.
"""

from typing import NamedTuple

from dualpace.plan.attention_cost import route_taken, seen_keys, slices
from dualpace.plan.plan import Attention, AttentionPolicy, Bound, Floor, LayerGroup, Model, TakenRoute, Target


class Work(NamedTuple):
    """What operations move and compute at least."""

    bytes: float
    flops: float

    def seconds(self, target: Target) -> float:
        """The least time of it on all cards."""
        return max(self.bytes / target.read_bandwidth, self.flops / target.flops) / target.count

    def waits_for_memory(self, target: Target) -> bool:
        """Whether moving takes longer than computing."""
        return self.bytes / target.read_bandwidth >= self.flops / target.flops


def layer_elements(model: Model) -> int:
    """Elements of the layers' linear weights, with which every token is multiplied."""
    attention = (2 * model.heads + 2 * model.kv_heads) * model.head_dim * model.hidden
    mlp = 3 * model.intermediate * model.hidden
    return model.layers * (attention + mlp)


def head_elements(model: Model) -> int:
    """Elements of the output head, with which every sampled token is multiplied."""
    return model.vocab * model.hidden


def vector_elements(model: Model) -> int:
    """Elements of norms and biases."""
    norms = (4 if model.post_norms else 2) * model.hidden
    bias = (model.heads + 2 * model.kv_heads) * model.head_dim if model.qkv_bias else 0
    qk_norms = 2 * model.head_dim if model.qk_norm else 0
    return model.layers * (norms + bias + qk_norms) + model.hidden


def parameters(model: Model) -> int:
    """Distinct parameters of the model."""
    embedding = 0 if model.tie_embeddings else head_elements(model)
    return layer_elements(model) + head_elements(model) + vector_elements(model) + embedding


def kv_token_bytes(model: Model) -> int:
    """Bytes of K and V that one token has in one layer."""
    return 2 * model.kv_heads * model.head_dim * model.element_bytes


def decode_weights(model: Model, rows: int) -> Work:
    """The matrix products of a decode step of `rows` rows, which read all weights once."""
    elements = layer_elements(model) + head_elements(model)
    return Work((elements + vector_elements(model)) * model.element_bytes, 2.0 * elements * rows)


def decode_attention(model: Model, context: int, selected: int | None = None) -> Work:
    """Attention of one token after `context` tokens, in all layers.

    A window bounds what its layers read; the others read `selected` tokens, all if None.
    """
    seen = context if selected is None else min(context, selected)
    keys = sum(len(group.layers) * (min(context, group.window) if group.window else seen) for group in model.groups)
    return _attention(model, keys, keys)


def prompt_attention(model: Model, tokens: int, chunk: int) -> Work:
    """Causal attention of a prompt of `tokens` tokens, in all layers; every chunk reads the KV that it sees once."""
    pairs = sum(len(group.layers) * _pairs(group, tokens) for group in model.groups)
    reads = sum(len(group.layers) * _reads(group, tokens, chunk) for group in model.groups)
    return _attention(model, reads, pairs)


def _attention(model: Model, keys_read: int, pairs: int) -> Work:
    """Query-key and weight-value products of `pairs` queries and keys in all heads."""
    return Work(keys_read * kv_token_bytes(model), 4.0 * model.heads * model.head_dim * pairs)


def _pairs(group: LayerGroup, tokens: int) -> int:
    """Keys that the tokens of a prompt see, all together."""
    window = min(group.window or tokens, tokens)
    return window * (window + 1) // 2 + (tokens - window) * window


def _reads(group: LayerGroup, tokens: int, chunk: int) -> int:
    """Keys that the chunks of a prompt read: their own, and those before their first token that it sees."""
    later_chunks, sees = -(-tokens // chunk) - 1, group.window - 1 if group.window else tokens
    within = min(later_chunks, sees // chunk)
    return tokens + chunk * within * (within + 1) // 2 + (later_chunks - within) * sees


def route(model: Model, attention: Attention, policy: AttentionPolicy | None, rows: int, context: int) -> TakenRoute:
    """The attention kernel of a decode step: the one that the spec names, else what the device would choose.

    That of the first layer group; without a `policy`, the CPU's.
    """
    if policy is None:
        return "host"
    if attention.route != "auto":
        return attention.route
    seen = seen_keys(model.groups[0], rows, context)
    return route_taken(policy, "auto", seen, slices(model), attention.split_tokens).route


def floor(
    model: Model,
    target: Target,
    attention: Attention,
    policy: AttentionPolicy | None,
    chunk: int,
    rows: int,
    context: int,
) -> Floor:
    """The floor of `rows` rows with `context` tokens each, prompts being cut into chunks of `chunk` tokens."""
    weights = decode_weights(model, rows)
    token = decode_attention(model, context)
    kv = Work(rows * token.bytes, rows * token.flops)
    ttft, ttft_bound = _prefill(model, target, chunk, rows, context)
    seconds = weights.seconds(target) + kv.seconds(target)
    return Floor(
        rows=rows,
        context=context,
        route=route(model, attention, policy, rows, context),
        seconds=seconds,
        weight_seconds=Work(weights.bytes, 0).seconds(target),
        flop_seconds=Work(0, weights.flops).seconds(target),
        kv_seconds=kv.seconds(target),
        bound=_bound(target, weights, kv),
        ttft_seconds=ttft,
        ttft_bound=ttft_bound,
        tokens_per_second=rows / seconds,
    )


def _prefill(model: Model, target: Target, chunk: int, rows: int, context: int) -> tuple[float, Bound]:
    """The least time of `rows` prompts of `context` tokens one after the other, and what takes most of it."""
    layers, head = layer_elements(model), head_elements(model)
    full, rest = divmod(rows * context, chunk)

    def products(tokens: int) -> Work:
        return Work((layers + vector_elements(model)) * model.element_bytes, 2.0 * layers * tokens)

    seconds = full * products(chunk).seconds(target) + (products(rest).seconds(target) if rest else 0)
    seconds += Work(head * model.element_bytes, 2.0 * head * rows).seconds(target)
    prompt = prompt_attention(model, context, chunk)
    attention = Work(rows * prompt.bytes, rows * prompt.flops)
    steps = full + (rest > 0)
    total = Work(steps * products(0).bytes, products(rows * context).flops)
    return seconds + attention.seconds(target), _bound(target, total, attention)


def _bound(target: Target, weights: Work, kv: Work) -> Bound:
    """What most of the time goes to."""
    if kv.seconds(target) > weights.seconds(target):
        return "KV" if kv.waits_for_memory(target) else "attention"
    return "weights" if weights.waits_for_memory(target) else "compute"
