"""The model: where it comes from, and whether its numbers go together."""

from collections.abc import Iterator

from dualpace.diagnostic import Severity
from dualpace.lint.rule import Finding, LintContext, Rule
from dualpace.plan.architectures import ARCHITECTURES

SINGLE_FILES = (".safetensors", ".bin", ".pt", ".pth", ".onnx", ".ggml", ".json")
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
        yield Finding(("model", "revision"), "model.revision is ignored without model.hub", "remove it, or add `hub`")


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
            yield Finding(("model", "shape", name), f"model.shape.{name} has no effect: {why}", remedy)
    if ARCHITECTURES[shape.family].default_pattern > 1 and shape.sliding_window is None:
        message = f"model.shape.sliding_window is absent, and {shape.family} has sliding-window layers"
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
        yield Finding((*path, name), message, "remove it, or correct the type")


def yarn_reach(context: LintContext) -> Iterator[Finding]:
    """YaRN stretches the trained context to the one that is promised."""
    model = context.spec.model
    scaling = model.shape and model.shape.rope_scaling
    if not (model.shape and scaling and scaling.type == "yarn" and scaling.original_context):
        return
    path = ("model", "max_context") if model.max_context != "auto" else ("model", "shape", "context")
    promised = model.shape.context if model.max_context == "auto" else model.max_context
    reach = int(scaling.original_context * scaling.factor)
    if promised > reach:
        message = (
            f"{'.'.join(path)} is {promised}, but yarn stretches {scaling.original_context} tokens by "
            f"{scaling.factor:g} to {reach}"
        )
        factor = promised / scaling.original_context
        yield Finding(path, message, f"lower it to {reach}, or set rope_scaling.factor to {factor:g}")


def stretch(context: LintContext) -> Iterator[Finding]:
    """Rotary scaling stretches."""
    scaling = context.spec.model.shape and context.spec.model.shape.rope_scaling
    if scaling and scaling.factor <= 1:
        effect = "stretches nothing" if scaling.factor == 1 else "squeezes the context instead"
        message = f"model.shape.rope_scaling.factor is {scaling.factor:g}, which {effect}"
        help_ = "remove rope_scaling, or give the factor of the model's config.json"
        yield Finding(("model", "shape", "rope_scaling", "factor"), message, help_)


def scaling_bounds(context: LintContext) -> Iterator[Finding]:
    """The frequencies that a scaling rule keeps are above those that it stretches."""
    scaling = context.spec.model.shape and context.spec.model.shape.rope_scaling
    if not scaling or scaling.type == "linear":
        return
    low, high = ("low_freq_factor", "high_freq_factor") if scaling.type == "llama3" else ("beta_slow", "beta_fast")
    least, most = getattr(scaling, low), getattr(scaling, high)
    if least >= most:
        message = f"model.shape.rope_scaling.{low} is {least:g}, not below {high} {most:g}"
        yield Finding(("model", "shape", "rope_scaling", low), message, "take both from the model's config.json")


def window_reach(context: LintContext) -> Iterator[Finding]:
    """A sliding window is shorter than the context."""
    shape = context.spec.model.shape
    if shape and shape.sliding_window is not None and shape.sliding_window >= shape.context:
        message = (
            f"model.shape.sliding_window is {shape.sliding_window}, and no position of a context of {shape.context} is "
            "ever out of it"
        )
        help_ = "take it from the model's config.json; where that says null, remove it"
        yield Finding(("model", "shape", "sliding_window"), message, help_)


def full_layers(context: LintContext) -> Iterator[Finding]:
    """A sliding pattern reaches a layer with full attention."""
    shape = context.spec.model.shape
    if shape is None or not ARCHITECTURES[shape.family].sliding or shape.sliding_window is None:
        return
    if shape.sliding_pattern is not None and shape.sliding_pattern > shape.layers:
        message = (
            f"model.shape.sliding_pattern is {shape.sliding_pattern}, beyond {shape.layers} layers: none has full "
            "attention"
        )
        yield Finding(("model", "shape", "sliding_pattern"), message, "correct it, or write 1 if that is meant")


def wide_on_gpu(context: LintContext) -> Iterator[Finding]:
    """A GPU deployment uses 16-bit weights and KV."""
    if context.spec.model.dtype == "fp32" and context.spec.target.gpu:
        message = "model.dtype is fp32: weights and KV take twice the memory and time of 16 bits"
        yield Finding(("model", "dtype"), message, "write bf16 or auto")


def unexpanded_path(context: LintContext) -> Iterator[Finding]:
    """Paths stand as they are; nothing in them is expanded."""
    spec = context.spec
    paths = {
        ("model", "path"): spec.model.path,
        ("target", "calibration"): spec.target.calibration,
        ("serving", "api_key_file"): spec.serving.api_key_file,
        ("serving", "chat_template"): spec.serving.chat_template,
        ("serving", "tls", "certificate"): tls.certificate if (tls := spec.serving.tls) else None,
        ("serving", "tls", "key"): tls.key if tls else None,
        ("nic", "gate", "tls", "certificate"): gate.tls.certificate if (gate := spec.nic.gate) else None,
        ("nic", "gate", "tls", "key"): gate.tls.key if gate else None,
        ("nic", "gate", "key_file"): gate.key_file if gate else None,
    }
    for path, value in paths.items():
        if value and (value.startswith("~") or "$" in value):
            message = f"{'.'.join(path)} is {value}: home folders and variables are not expanded"
            yield Finding(path, message, "write the path out, or make it relative to the spec")


def path_kind(context: LintContext) -> Iterator[Finding]:
    """A checkpoint is a folder or a .gguf file."""
    path = context.spec.model.path
    if path and path.endswith(SINGLE_FILES):
        message = f"model.path is {path}: a checkpoint is a folder with config.json and safetensors, or a .gguf file"
        folder = path.rpartition("/")[0] or "."
        yield Finding(("model", "path"), message, f"write the folder, `path: {folder}`")


MODEL_RULES = (
    Rule("DP201", "model-source", Severity.ERROR, source),
    Rule("DP202", "hub-revision", Severity.ERROR, revision),
    Rule("DP203", "heads-multiple", Severity.ERROR, heads),
    Rule("DP204", "head-dim", Severity.ERROR, head_dim),
    Rule("DP205", "context-length", Severity.ERROR, context_length),
    Rule("DP206", "sliding-window", Severity.ERROR, sliding_window),
    Rule("DP207", "dtype-range", Severity.ERROR, dtype),
    Rule("DP208", "rope-scaling", Severity.ERROR, rope_scaling),
    Rule("DP209", "yarn-reach", Severity.WARNING, yarn_reach),
    Rule("DP210", "scaling-factor", Severity.WARNING, stretch),
    Rule("DP211", "scaling-bounds", Severity.ERROR, scaling_bounds),
    Rule("DP212", "window-reach", Severity.WARNING, window_reach),
    Rule("DP213", "full-layers", Severity.WARNING, full_layers),
    Rule("DP214", "fp32-on-gpu", Severity.WARNING, wide_on_gpu),
    Rule("DP215", "unexpanded-path", Severity.ERROR, unexpanded_path),
    Rule("DP216", "path-kind", Severity.ERROR, path_kind),
)
