"""The model: where it comes from, and whether its numbers go together."""

from collections.abc import Iterator

from dualpace.diagnostic import Severity
from dualpace.lint.rule import REMOVE, Finding, LintContext, Rule
from dualpace.plan.architectures import ARCHITECTURES

HEAD_DIMS = (64, 80, 96, 128, 256)
SCALING_FIELDS = {
    "linear": set[str](),
    "llama3": {"original_context", "low_freq_factor", "high_freq_factor"},
    "yarn": {"original_context", "beta_fast", "beta_slow", "attention_factor"},
}


def source(context: LintContext) -> Iterator[Finding]:
    """Exactly one of a hub id, a path, or a shape with random weights names the model."""
    model = context.spec.model
    if model.hub and model.path:
        yield Finding(("model", "path"), "model names both hub and path", "keep the one that holds the weights")
    elif not (model.hub or model.path):
        if model.shape is None:
            help_ = "add `path` or `hub` with `revision`, or a `shape` with `weights: {random: 0}`"
            yield Finding(("model",), "model names no weights: hub, path and shape are all absent", help_)
        elif model.weights == "checkpoint":
            help_ = "add `path` or `hub`, or `weights: {random: 0}` to measure without weights"
            yield Finding(("model", "shape"), "model.shape alone names no checkpoint to read weights from", help_)


def revision(context: LintContext) -> Iterator[Finding]:
    """A hub id and a revision come together."""
    model = context.spec.model
    if model.hub and not model.revision:
        help_ = "add `revision:` with the 40 hex digits of the repository's commit"
        yield Finding(("model", "hub"), f"model.hub {model.hub} has no revision, so a build would not repeat", help_)
    elif model.revision and not model.hub:
        yield Finding(
            ("model", "revision"), "model.revision is ignored without model.hub", "remove it, or add `hub`", REMOVE
        )


def heads(context: LintContext) -> Iterator[Finding]:
    """Every KV head serves the same number of query heads."""
    shape = context.spec.model.shape
    if shape and shape.heads % shape.kv_heads:
        message = f"model.shape.heads is {shape.heads}, not a multiple of kv_heads {shape.kv_heads}"
        yield Finding(("model", "shape", "heads"), message, "take both from the model's config.json")


def head_dim(context: LintContext) -> Iterator[Finding]:
    """GPU attention kernels exist for some head sizes."""
    shape = context.spec.model.shape
    if shape is None or context.spec.target.cpu:
        return
    size = shape.head_dim or shape.hidden / shape.heads
    if size not in HEAD_DIMS:
        origin = "" if shape.head_dim else f" (hidden {shape.hidden} / heads {shape.heads})"
        message = f"model.shape.head_dim is {size:g}{origin}: GPU kernels exist for {', '.join(map(str, HEAD_DIMS))}"
        yield Finding(("model", "shape", "head_dim"), message, "set head_dim as in the model's config.json")


def context_length(context: LintContext) -> Iterator[Finding]:
    """A deployment promises no more context than the model supports."""
    model = context.spec.model
    if model.shape and model.max_context != "auto" and model.max_context > model.shape.context:
        message = f"model.max_context is {model.max_context}, beyond the model's context of {model.shape.context}"
        yield Finding(("model", "max_context"), message, f"lower it to {model.shape.context} or write auto")


def sliding_window(context: LintContext) -> Iterator[Finding]:
    """Sliding-window fields are given exactly where the family has such layers."""
    shape = context.spec.model.shape
    if shape is None:
        return
    if not ARCHITECTURES[shape.family].sliding:
        why, remedy = f"{shape.family} has no sliding-window layers", "remove it, or correct family"
    elif shape.sliding_window is None:
        why, remedy = "sliding_window is not set", "remove it, or add sliding_window"
    else:
        return
    for name in ("sliding_window", "sliding_pattern", "rope_local_theta"):
        if getattr(shape, name) is not None:
            yield Finding(("model", "shape", name), f"model.shape.{name} has no effect: {why}", remedy, REMOVE)
    if shape.family == "gemma3" and shape.sliding_window is None:
        message = "model.shape.sliding_window is absent, and gemma3 has sliding-window layers"
        yield Finding(("model", "shape"), message, "add `sliding_window: 512`, or what the model's config.json says")


def dtype(context: LintContext) -> Iterator[Finding]:
    """The type holds the family's activations."""
    model = context.spec.model
    family = context.plan.model.family if context.plan else model.shape.family if model.shape else None
    if family is None or model.dtype == "auto":
        return
    safe = ARCHITECTURES[family].dtypes
    if model.dtype not in safe:
        message = f"model.dtype is {model.dtype}, which activations of {family} models overflow"
        yield Finding(("model", "dtype"), message, f"use one of {', '.join(safe)}")


def rope_scaling(context: LintContext) -> Iterator[Finding]:
    """A scaling rule has the fields that it uses, and no others."""
    scaling = context.spec.model.shape and context.spec.model.shape.rope_scaling
    if not scaling:
        return
    path = ("model", "shape", "rope_scaling")
    used = SCALING_FIELDS[scaling.type]
    if "original_context" in used and scaling.original_context is None:
        help_ = "add `original_context: 8192`, or what the model's config.json says"
        yield Finding(path, f"{'.'.join(path)} of type {scaling.type} needs original_context", help_)
    for name in sorted(scaling.model_fields_set - used - {"type", "factor"}):
        message = f"{'.'.join(path)}.{name} has no effect with type {scaling.type}"
        yield Finding((*path, name), message, "remove it, or correct the type", REMOVE)


MODEL_RULES = (
    Rule("DP201", "model-source", Severity.ERROR, source),
    Rule("DP202", "hub-revision", Severity.ERROR, revision),
    Rule("DP203", "heads-multiple", Severity.ERROR, heads),
    Rule("DP204", "head-dim", Severity.ERROR, head_dim),
    Rule("DP205", "context-length", Severity.ERROR, context_length),
    Rule("DP206", "sliding-window", Severity.ERROR, sliding_window),
    Rule("DP207", "dtype-range", Severity.ERROR, dtype),
    Rule("DP208", "rope-scaling", Severity.ERROR, rope_scaling),
)
