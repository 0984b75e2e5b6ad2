"""Reads the shape of a model from its checkpoint: a folder with config.json, or the header of a .gguf file.

What an engine here does not compute is refused by name, never dropped.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from dualpace.plan.architectures import ARCHITECTURES, Architecture
from dualpace.plan.gguf_header import GgufError, GgufHeader, read_floats, read_header
from dualpace.plan.plan import DType, Rope
from dualpace.plan.rope import inverse_frequencies, yarn_attention_factor
from dualpace.spec.models import Family, RopeScaling, Shape

MODEL_TYPES = {model_type: a for a in ARCHITECTURES.values() for model_type in a.model_types}
DTYPES: dict[str, DType] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}

# Keys of config.json that ask for something no engine here computes, unless they have one of these values.
HARMLESS: dict[str, tuple[object, ...]] = {
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "final_logit_softcapping": (None,),
    "attn_logit_softcapping": (None,),
    "quantization_config": (None,),
    "mlp_bias": (None, False),
    "use_bidirectional_attention": (None, False),
    "partial_rotary_factor": (None, 1, 1.0),
    "text_config": (None,),
}


class CheckpointError(ValueError):
    """A checkpoint whose shape cannot be read or is not supported; the message names the file and the field."""


@dataclass(frozen=True)
class Checkpoint:
    """The shape of a checkpoint, and the type that its weights were made for, if it says so."""

    shape: Shape
    dtype: DType | None


def read_checkpoint(path: Path) -> Checkpoint:
    """Read the shape of the checkpoint at `path`, a folder or a .gguf file. Raises CheckpointError."""
    try:
        if path.suffix == ".gguf":
            return _from_gguf(path, read_header(path))
        return _from_config(path / "config.json", json.loads((path / "config.json").read_text(encoding="utf-8")))
    except OSError as error:
        raise CheckpointError(f"{error.filename or path}: {error.strerror or error}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path / 'config.json'} is not JSON: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(
            f"{path}: {'.'.join(map(str, first['loc']))} {first['input']!r}: {first['msg']}"
        ) from error
    except GgufError as error:
        raise CheckpointError(f"{path}: {error}") from error


class _Fields:
    """Typed access to a mapping of a file; errors name the file and the key."""

    def __init__(self, file: Path, values: Mapping[str, Any]) -> None:
        self.file = file
        self.values = values

    def refuse(self, key: str, why: str) -> CheckpointError:
        return CheckpointError(f"{self.file}: {key} {self.values.get(key)!r} {why}")

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise self.refuse(key, "should be a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self.refuse(key, "should be a positive number")
        # GGUF keeps fp32: seven digits give back the decimal that was meant (1e-06, not 9.999999974752427e-07).
        return float(f"{value:.7g}")


def _architecture(fields: _Fields, key: str) -> Architecture:
    architecture = MODEL_TYPES.get(str(fields.values.get(key)))
    if architecture is None:
        raise fields.refuse(key, f"is not a supported model type: {', '.join(sorted(MODEL_TYPES))} are")
    return architecture


# config.json


def _from_config(file: Path, config: object) -> Checkpoint:
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} should hold an object")
    fields = _Fields(file, config)
    architecture = _architecture(fields, "model_type")
    names = config.get("architectures") or ()
    if names and not set(names) & set(architecture.class_names):
        raise fields.refuse("architectures", f"is not supported: {', '.join(architecture.class_names)} is")
    for key, harmless in HARMLESS.items():
        if config.get(key) not in harmless:
            raise fields.refuse(key, "is not supported")
    if config.get("attention_bias") and not architecture.qkv_bias:
        raise fields.refuse("attention_bias", f"is not supported for {architecture.family}")
    activation = "hidden_activation" if fields.has("hidden_activation") else "hidden_act"
    if ACTIVATIONS.get(config.get(activation, "silu")) != architecture.activation:
        raise fields.refuse(activation, f"is not {architecture.family}'s {architecture.activation}")

    heads, layers, context = (
        fields.integer(key) for key in ("num_attention_heads", "num_hidden_layers", "max_position_embeddings")
    )
    window, pattern = _config_window(fields, architecture, layers)
    rope, local_theta = _config_rope(fields, architecture)
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
        rope_scaling=_config_scaling(rope, context),
        sliding_window=window,
        sliding_pattern=pattern,
        attention_scale=fields.number("query_pre_attn_scalar") ** -0.5 if fields.has("query_pre_attn_scalar") else None,
        tie_embeddings=bool(config.get("tie_word_embeddings", architecture.tie_embeddings)),
    )
    return Checkpoint(shape, DTYPES.get(str(config.get("dtype") or config.get("torch_dtype"))))


def _config_window(fields: _Fields, architecture: Architecture, layers: int) -> tuple[int | None, int]:
    """Window and pattern of the sliding-window layers; the window is None if no layer has one."""
    values = fields.values
    if not architecture.sliding:
        slides = values.get("use_sliding_window") and fields.integer("max_window_layers", layers) < layers
        if slides or "sliding_attention" in (values.get("layer_types") or ()):
            raise fields.refuse("use_sliding_window", f"is not supported for {architecture.family}")
        return None, 1
    # The reference implementation of these families assumes 4,096 where the key is missing; null means no window.
    window = fields.integer("sliding_window") if values.get("sliding_window", 4096) is not None else None
    if "sliding_window" not in values:
        window = 4096
    if window is None:
        return None, 1
    kinds = values.get("layer_types")
    if kinds is None:
        key = "sliding_window_pattern" if fields.has("sliding_window_pattern") else "_sliding_window_pattern"
        return window, fields.integer(key, architecture.default_pattern)
    full = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
    if len(full) == layers:
        return None, 1
    pattern = full[0] + 1 if full else 1
    if len(kinds) != layers or (full and full != list(range(pattern - 1, layers, pattern))):
        raise fields.refuse("layer_types", "is not supported: every n-th layer may have full attention")
    return window, pattern


def _config_rope(fields: _Fields, architecture: Architecture) -> tuple[_Fields, float | None]:
    """Rope fields of the full-attention layers, and the base of the sliding-window layers if they have their own."""
    values = fields.values
    given = values.get("rope_parameters") or {}
    scaling = values.get("rope_scaling") or {}
    if not isinstance(given, dict) or not isinstance(scaling, dict):
        raise fields.refuse("rope_parameters", "should be an object")
    full = given.get("full_attention", given)
    theta = values.get("rope_theta", architecture.rope_theta)
    rope = _Fields(fields.file, {"rope_theta": theta, **full, **scaling})
    if architecture.local_theta is None:
        return rope, None
    local = _Fields(
        fields.file, {"rope_theta": values.get("rope_local_base_freq"), **given.get("sliding_attention", {})}
    )
    if local.values.get("rope_type", "default") != "default":
        raise local.refuse("rope_type", "is not supported for sliding_attention")
    return rope, local.number("rope_theta", architecture.local_theta)


def _config_scaling(rope: _Fields, context: int) -> RopeScaling | None:
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


# GGUF


def _from_gguf(path: Path, header: GgufHeader) -> Checkpoint:
    top = _Fields(path, header.metadata)
    architecture = _architecture(top, "general.architecture")
    prefix = f"{header.metadata['general.architecture']}."
    fields = _Fields(path, {k.removeprefix(prefix): v for k, v in header.metadata.items() if k.startswith(prefix)})
    for key in ("expert_count", "final_logit_softcapping", "attn_logit_softcapping", "attention.scale"):
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
        rope_scaling=_gguf_scaling(fields, header, theta, head_dim),
        sliding_window=fields.integer("attention.sliding_window") if slides else None,
        sliding_pattern=fields.integer("attention.sliding_window_pattern", architecture.default_pattern),
        attention_scale=(hidden / heads) ** -0.5 if wide else None,
        tie_embeddings="output.weight" not in header.tensors,
    )
    return Checkpoint(shape, None)


def _gguf_scaling(fields: _Fields, header: GgufHeader, theta: float, head_dim: int) -> RopeScaling | None:
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


def _llama3_from_factors(fields: _Fields, factors: tuple[float, ...], theta: float, head_dim: int) -> RopeScaling:
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
