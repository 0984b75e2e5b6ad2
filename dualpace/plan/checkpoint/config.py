"""The shape in a config.json, in the spellings of old and new checkpoints.

What no engine here computes is refused by name, never dropped.
"""

import json
from pathlib import Path
from typing import cast

from dualpace.plan.architectures import Architecture
from dualpace.plan.checkpoint.fields import Checkpoint, CheckpointError, Fields
from dualpace.plan.plan import DType
from dualpace.plan.rope import yarn_attention_factor
from dualpace.spec.models import Family, RopeScaling, Shape

DTYPES: dict[str, DType] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}

# Keys of config.json that ask for something no engine here computes, unless they have one of these values.
HARMLESS: dict[str, tuple[object, ...]] = {
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "final_logit_softcapping": (None,),
    "quantization_config": (None,),
    "mlp_bias": (None, False),
    "use_bidirectional_attention": (None, False),
    "partial_rotary_factor": (None, 1, 1.0),
    "text_config": (None,),
}
LAYER_KINDS = ("full_attention", "sliding_attention")
MISSING_WINDOW = 4096


def read_config(file: Path) -> Checkpoint:
    """Read the shape in `file`. Raises CheckpointError, and OSError if the file cannot be read."""
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} should hold an object")
    fields = Fields(file, config)
    architecture = fields.architecture("model_type")
    names = config.get("architectures")
    if isinstance(names, list) and not any(name in architecture.class_names for name in names):
        raise fields.refuse("architectures", f"is not supported: {', '.join(architecture.class_names)} is")
    for key, harmless in HARMLESS.items():
        if config.get(key) not in harmless:
            raise fields.refuse(key, "is not supported")
    if config.get("attention_bias") and not architecture.qkv_bias:
        raise fields.refuse("attention_bias", f"is not supported for {architecture.family}")
    activation = "hidden_activation" if fields.has("hidden_activation") else "hidden_act"
    if fields.has(activation) and ACTIVATIONS.get(str(config[activation])) != architecture.activation:
        raise fields.refuse(activation, f"is not {architecture.family}'s {architecture.activation}")

    heads, layers, context = (
        fields.integer(key) for key in ("num_attention_heads", "num_hidden_layers", "max_position_embeddings")
    )
    window, pattern = _window(fields, architecture, layers)
    rope, local_theta = _rope(fields, architecture)
    shape = Shape(
        family=cast(Family, architecture.family),
        layers=layers,
        hidden=fields.integer("hidden_size"),
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", heads),
        head_dim=fields.integer("head_dim") if fields.has("head_dim") else None,
        intermediate=fields.integer("intermediate_size"),
        vocab=fields.integer("vocab_size"),
        context=context,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=rope.number("rope_theta"),
        rope_local_theta=local_theta,
        rope_scaling=_scaling(rope, context),
        sliding_window=window,
        sliding_pattern=pattern,
        attention_scale=fields.number("query_pre_attn_scalar") ** -0.5 if fields.has("query_pre_attn_scalar") else None,
        attention_softcap=fields.softcap("attn_logit_softcapping", architecture),
        tie_embeddings=bool(config.get("tie_word_embeddings", architecture.tie_embeddings)),
    )
    key = "dtype" if fields.has("dtype") else "torch_dtype"
    dtype = DTYPES.get(str(config.get(key)))
    if dtype is None and fields.has(key):
        raise fields.refuse(key, f"is not supported: {', '.join(DTYPES)} are")
    return Checkpoint(shape, dtype)


def _window(fields: Fields, architecture: Architecture, layers: int) -> tuple[int | None, int]:
    """Window and pattern of the sliding-window layers; the window is None if no layer has one."""
    values = fields.values
    if not architecture.sliding:
        if values.get("use_sliding_window") and fields.integer("max_window_layers", 28) < layers:
            raise fields.refuse("use_sliding_window", f"is not supported for {architecture.family}")
        return None, 1
    if "sliding_window" in values and not fields.has("sliding_window"):
        return None, 1
    # The reference implementation of these families has this window where the key is missing.
    window = fields.integer("sliding_window", MISSING_WINDOW)
    kinds = values.get("layer_types")
    if not isinstance(kinds, list):
        key = "sliding_window_pattern" if fields.has("sliding_window_pattern") else "_sliding_window_pattern"
        return window, fields.integer(key, architecture.default_pattern)
    full = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
    if len(full) == layers:
        return None, 1
    pattern = full[0] + 1 if full else 1
    regular = not full or full == list(range(pattern - 1, layers, pattern))
    if not regular or len(kinds) != layers or any(kind not in LAYER_KINDS for kind in kinds):
        raise fields.refuse("layer_types", "is not supported: every n-th layer may have full attention")
    return window, pattern


def _rope(fields: Fields, architecture: Architecture) -> tuple[Fields, float | None]:
    """Rope fields of the full-attention layers, and the base of the sliding-window layers if they have their own."""
    values = fields.values
    given = fields.object("rope_parameters")
    by_kind = any(kind in given.values for kind in LAYER_KINDS)
    full = given.object("full_attention") if by_kind else given
    scaling = fields.object("rope_scaling")
    theta = values.get("rope_theta", architecture.rope_theta)
    rope = Fields(fields.file, {"rope_theta": theta, **full.values, **scaling.values})
    if architecture.local_theta is None:
        return rope, None
    base = values.get("rope_local_base_freq")
    local = Fields(fields.file, {"rope_theta": base, **given.object("sliding_attention").values})
    if local.values.get("rope_type", "default") != "default":
        raise local.refuse("rope_type", "is not supported for sliding_attention")
    return rope, local.number("rope_theta", architecture.local_theta)


def _scaling(rope: Fields, context: int) -> RopeScaling | None:
    kind = rope.values.get("rope_type", rope.values.get("type", "default"))
    if kind == "default":
        return None
    if kind not in ("linear", "llama3", "yarn"):
        raise CheckpointError(f"{rope.file}: rope type {kind!r} is not supported: linear, llama3 and yarn are")
    if rope.values.get("partial_rotary_factor", 1) != 1:
        raise rope.refuse("partial_rotary_factor", "is not supported")
    if kind == "linear":
        return RopeScaling(type="linear", factor=rope.number("factor"))
    original = rope.integer("original_max_position_embeddings", context)
    if kind == "llama3":
        return RopeScaling(
            type="llama3",
            factor=rope.number("factor"),
            original_context=original,
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
        )
    if rope.values.get("truncate", True) is not True:
        raise rope.refuse("truncate", "is not supported for yarn")
    factor = rope.number("factor", context / original)
    attention = rope.number("attention_factor") if rope.has("attention_factor") else None
    if attention is None and rope.has("mscale") and rope.has("mscale_all_dim"):
        attention = yarn_attention_factor(factor, rope.number("mscale")) / yarn_attention_factor(
            factor, rope.number("mscale_all_dim")
        )
    return RopeScaling(
        type="yarn",
        factor=factor,
        original_context=original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        attention_factor=attention,
    )
