"""The shape in a GGUF header, which leaves some of it to the reader."""

from pathlib import Path
from typing import cast

from dualpace.plan.checkpoint.fields import Checkpoint, CheckpointError, Fields
from dualpace.plan.gguf_header import GgufError, GgufHeader, read_floats, read_header
from dualpace.plan.plan import Rope
from dualpace.plan.rope import inverse_frequencies
from dualpace.spec.models import Family, RopeScaling, Shape


def read_gguf(path: Path) -> Checkpoint:
    """Read the shape in the header of `path`. Raises CheckpointError, and OSError if the file cannot be read."""
    try:
        return _checkpoint(path, read_header(path))
    except GgufError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _checkpoint(path: Path, header: GgufHeader) -> Checkpoint:
    architecture = Fields(path, header.metadata).architecture("general.architecture")
    prefix = f"{header.metadata['general.architecture']}."
    # Numbers are fp32 there: seven digits give back the decimal that was meant (1e-06, not 9.999999974752427e-07).
    fields = Fields(
        path,
        {
            key.removeprefix(prefix): float(f"{value:.7g}") if isinstance(value, float) else value
            for key, value in header.metadata.items()
            if key.startswith(prefix)
        },
    )
    for key in ("expert_count", "final_logit_softcapping", "attention.scale"):
        if fields.values.get(key):
            raise fields.refuse(key, "is not supported")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{path}: it has no token_embd.weight of two dimensions")

    layers, hidden, heads = (fields.integer(key) for key in ("block_count", "embedding_length", "attention.head_count"))
    head_dim = fields.integer("attention.key_length", max(hidden // heads, 1))
    if fields.integer("attention.value_length", head_dim) != head_dim:
        raise fields.refuse("attention.value_length", f"is not the key length, {head_dim}")
    if fields.integer("rope.dimension_count", head_dim) != head_dim:
        raise fields.refuse("rope.dimension_count", f"is not the head dimension, {head_dim}")
    slides = architecture.sliding and fields.has("attention.sliding_window")
    theta = fields.number("rope.freq_base", architecture.rope_theta)
    # GGUF leaves out Gemma 3's query scale: head_dim ** -0.5 in all sizes but the largest, which has 62 layers.
    wide = architecture.family == "gemma3" and layers == 62
    shape = Shape(
        family=cast(Family, architecture.family),
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=fields.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate=fields.integer("feed_forward_length"),
        vocab=embedding.shape[0],
        context=fields.integer("context_length"),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope_theta=theta,
        rope_local_theta=fields.number("rope.freq_base_swa", architecture.local_theta) if slides else None,
        rope_scaling=_scaling(fields, header, theta, head_dim),
        sliding_window=fields.integer("attention.sliding_window") if slides else None,
        sliding_pattern=fields.integer("attention.sliding_window_pattern", architecture.default_pattern),
        attention_scale=(hidden / heads) ** -0.5 if wide else None,
        attention_softcap=fields.softcap("attn_logit_softcapping", architecture),
        tie_embeddings="output.weight" not in header.tensors,
    )
    return Checkpoint(shape, None)


def _scaling(fields: Fields, header: GgufHeader, theta: float, head_dim: int) -> RopeScaling | None:
    if "rope_freqs.weight" in header.tensors:
        return _llama3_from_factors(fields, read_floats(fields.file, header, "rope_freqs.weight"), theta, head_dim)
    kind = fields.values.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    factor = fields.number("rope.scaling.factor")
    if kind == "linear":
        return RopeScaling(type="linear", factor=factor)
    if kind != "yarn":
        raise fields.refuse("rope.scaling.type", "is not supported: linear and yarn are")
    for key in ("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"):
        if fields.values.get(key, 1.0) != 1.0:
            raise fields.refuse(key, "is not supported")
    return RopeScaling(
        type="yarn",
        factor=factor,
        original_context=fields.integer("rope.scaling.original_context_length"),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
    )


def _llama3_from_factors(fields: Fields, factors: tuple[float, ...], theta: float, head_dim: int) -> RopeScaling:
    """GGUF keeps Llama 3's scaling as a divisor for each frequency; find the published rule that gives them."""
    scaling = RopeScaling(type="llama3", factor=max(factors), original_context=8192)
    rule = Rope(theta=theta, scaling="llama3", factor=scaling.factor, original_context=8192)
    plain = inverse_frequencies(Rope(theta=theta), head_dim)
    expected = [f / scaled for f, scaled in zip(plain, inverse_frequencies(rule, head_dim), strict=True)]
    if len(factors) != len(expected) or any(abs(f - e) > 1e-3 * e for f, e in zip(factors, expected, strict=True)):
        raise CheckpointError(
            f"{fields.file}: rope_freqs.weight does not follow the llama3 rule; others are not supported"
        )
    return scaling
