"""From a shape to the model that kernels and step programs are made for; and whether two shapes are the same model."""

import math
from collections.abc import Iterator

from dualpace.plan.architectures import ARCHITECTURES
from dualpace.plan.error import PlanError
from dualpace.plan.plan import DType, LayerGroup, Model, Rope
from dualpace.plan.rope import yarn_attention_factor
from dualpace.spec.models import Shape

SHAPE = ("model", "shape")
# Kernels load 16-byte pieces of 16-bit elements, and add up the squares of the residual in strips of 16.
MULTIPLES = {"hidden": 16, "intermediate": 8, "head_dim": 8}
# The CPU's kernels work on whole vectors of 16 floats.
HOST_MULTIPLE = 16


class CompleteShape(Shape):
    """A shape in which nothing is left to the family or to other fields."""

    head_dim: int
    attention_scale: float
    rope_theta: float
    sliding_pattern: int
    tie_embeddings: bool


def complete(shape: Shape) -> CompleteShape:
    """`shape` with what it leaves out. Raises PlanError."""
    family = ARCHITECTURES[shape.family]
    if shape.head_dim is None and shape.hidden % shape.heads:
        raise PlanError(
            (*SHAPE, "head_dim"),
            f"hidden {shape.hidden} is not a multiple of heads {shape.heads}",
            "give head_dim",
        )
    head_dim = shape.head_dim or shape.hidden // shape.heads
    pattern = shape.sliding_pattern or family.default_pattern
    # A pattern that no layer reaches leaves them all sliding.
    reached = shape.sliding_window is not None and pattern <= shape.layers
    derived = {
        "head_dim": head_dim,
        "attention_scale": shape.attention_scale or head_dim**-0.5,
        "rope_theta": shape.rope_theta or family.rope_theta,
        "rope_local_theta": (shape.rope_local_theta or family.local_theta) if shape.sliding_window else None,
        "sliding_pattern": pattern if reached else 1,
        "tie_embeddings": family.tie_embeddings if shape.tie_embeddings is None else shape.tie_embeddings,
    }
    return CompleteShape.model_validate(shape.model_dump() | derived)


def differences(given: CompleteShape, found: CompleteShape) -> Iterator[tuple[str, object, object]]:
    """Fields in which two shapes are not the same model: name, value given, value found."""
    for field in Shape.model_fields:
        ours, theirs = getattr(given, field), getattr(found, field)
        if isinstance(ours, float) and isinstance(theirs, float):
            if not math.isclose(ours, theirs, rel_tol=1e-6):
                yield field, ours, theirs
        elif ours != theirs:
            yield field, ours, theirs


def resolve_model(shape: CompleteShape, dtype: DType) -> Model:
    """The model of `shape` in `dtype`. Raises PlanError for what no kernel can do."""
    architecture = ARCHITECTURES[shape.family]
    if shape.heads % shape.kv_heads:
        raise PlanError((*SHAPE, "kv_heads"), f"heads {shape.heads} is not a multiple of kv_heads {shape.kv_heads}")
    for field, multiple in MULTIPLES.items():
        value = getattr(shape, field)
        if value % multiple:
            raise PlanError((*SHAPE, field), f"{field} {value} is not a multiple of {multiple}, as all kernels need")
    if shape.sliding_window and not architecture.sliding:
        raise PlanError((*SHAPE, "sliding_window"), f"the {shape.family} family has no sliding window", "leave it out")
    if shape.attention_softcap and not architecture.softcap:
        raise PlanError((*SHAPE, "attention_softcap"), f"the {shape.family} family has no soft cap", "leave it out")
    if dtype not in architecture.dtypes:
        raise PlanError(
            ("model", "dtype"),
            f"{shape.family} does not run in {dtype}: its activations overflow",
            f"use {' or '.join(architecture.dtypes)}",
        )
    return Model(
        family=shape.family,
        dtype=dtype,
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate=shape.intermediate,
        vocab=shape.vocab,
        context=shape.context,
        norm_eps=shape.norm_eps,
        norm_offset=architecture.norm_offset,
        activation=architecture.activation,
        qkv_bias=architecture.qkv_bias,
        qk_norm=architecture.qk_norm,
        post_norms=architecture.post_norms,
        tie_embeddings=shape.tie_embeddings,
        embed_scale=math.sqrt(shape.hidden) if architecture.scaled_embedding else 1.0,
        attention_scale=shape.attention_scale,
        attention_softcap=shape.attention_softcap or 0.0,
        groups=_groups(shape),
    )


def check_host(shape: CompleteShape) -> None:
    """Raise PlanError for a shape that the CPU's kernels cannot do."""
    for field in ("intermediate", "head_dim"):
        value = getattr(shape, field)
        if value % HOST_MULTIPLE:
            raise PlanError(
                (*SHAPE, field),
                f"{field} {value} is not a multiple of {HOST_MULTIPLE}, as the CPU's kernels need",
                "choose a GPU target",
            )


def _groups(shape: CompleteShape) -> tuple[LayerGroup, ...]:
    layers = range(shape.layers)
    every = shape.sliding_pattern
    window = shape.sliding_window or 0
    full = tuple(i for i in layers if not window or (every > 1 and (i + 1) % every == 0))
    sliding = tuple(i for i in layers if i not in full)
    # Layers with a base of their own never see the stretched positions, so their frequencies are not scaled.
    local = _rope(shape) if shape.rope_local_theta is None else Rope(theta=shape.rope_local_theta)
    groups = (
        LayerGroup(name="full", layers=full, window=0, rope=_rope(shape)),
        LayerGroup(name="sliding", layers=sliding, window=window, rope=local),
    )
    return tuple(group for group in groups if group.layers)


def _rope(shape: CompleteShape) -> Rope:
    scaling = shape.rope_scaling
    if scaling is None:
        return Rope(theta=shape.rope_theta)
    if scaling.type in ("llama3", "yarn") and scaling.original_context is None:
        raise PlanError((*SHAPE, "rope_scaling", "original_context"), f"{scaling.type} needs the trained context")
    attention = 1.0
    if scaling.type == "yarn":
        attention = scaling.attention_factor or yarn_attention_factor(scaling.factor)
    return Rope(
        theta=shape.rope_theta,
        scaling=scaling.type,
        factor=scaling.factor,
        original_context=scaling.original_context or 0,
        low_freq_factor=scaling.low_freq_factor,
        high_freq_factor=scaling.high_freq_factor,
        beta_fast=scaling.beta_fast,
        beta_slow=scaling.beta_slow,
        attention_factor=attention,
    )
