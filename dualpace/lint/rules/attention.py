"""Attention: what the kernels are specialised for."""

from collections.abc import Iterator

from dualpace.diagnostic import Severity
from dualpace.lint.rule import Finding, LintContext, Rule
from dualpace.plan.flashinfer import HEAD_DIMS, MOST_HEADS

MOST_WASTE = 1 / 8


def gqa_ratio(context: LintContext) -> Iterator[Finding]:
    """The ratio that the spec states is the model's."""
    stated, shape = context.spec.attention.gqa_ratio, context.spec.model.shape
    if stated == "auto" or shape is None or shape.heads % shape.kv_heads:
        return
    actual = shape.heads // shape.kv_heads
    if stated != actual:
        message = (
            f"attention.gqa_ratio is {stated}, but {shape.heads} heads over {shape.kv_heads} kv_heads make {actual}"
        )
        yield Finding(("attention", "gqa_ratio"), message, f"write {actual} or auto, or correct model.shape")


def route(context: LintContext) -> Iterator[Finding]:
    """Routes name GPU kernels."""
    chosen = context.spec.attention.route
    if context.spec.target.cpu and chosen != "auto":
        message = f"attention.route is {chosen}, which has no effect on the CPU engine"
        yield Finding(("attention", "route"), message, "remove it", removable=True)


def flashinfer_shape(context: LintContext) -> Iterator[Finding]:
    """FlashInfer's decode kernels exist for the model's heads and dtype."""
    plan = context.plan
    if plan is None or plan.target.kind == "cpu" or context.spec.attention.route != "flashinfer":
        return
    if plan.attention.flashinfer == "none":
        model, known = plan.model, ", ".join(map(str, HEAD_DIMS))
        message = (
            f"attention.route is flashinfer, which has kernels for head_dim {known} and up to {MOST_HEADS} query heads "
            f"a KV head in bf16 or fp16, not for {model.head_dim} and {model.gqa_ratio} in {model.dtype}"
        )
        yield Finding(("attention", "route"), message, "write split, workqueue or auto")


def page_waste(context: LintContext) -> Iterator[Finding]:
    """Half-empty last pages are a small part of the KV."""
    plan = context.plan
    if plan is None or context.spec.attention.page_size == "auto":
        return
    size, tokens = plan.attention.page_size, plan.pages[0].pages * plan.attention.page_size
    waste = plan.schedule.max_batch * size / 2
    if waste > MOST_WASTE * tokens:
        message = (
            f"attention.page_size is {size}: last pages, half empty on average, leave {waste / tokens:.0%} of the KV "
            f"unused by {plan.schedule.max_batch} rows"
        )
        yield Finding(("attention", "page_size"), message, "write 16 or auto, or give the KV more memory")


ATTENTION_RULES = (
    Rule("DP301", "gqa-ratio", Severity.ERROR, gqa_ratio),
    Rule("DP302", "route-ignored", Severity.WARNING, route),
    Rule("DP303", "flashinfer-shape", Severity.ERROR, flashinfer_shape),
    Rule("DP304", "page-waste", Severity.WARNING, page_waste),
)
