"""Attention: what the kernels are specialised for."""

from collections.abc import Iterator

from dualpace.diagnostic import Severity
from dualpace.lint.rule import REMOVE, Finding, LintContext, Rule


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
        yield Finding(("attention", "route"), message, "remove it", REMOVE)


ATTENTION_RULES = (
    Rule("DP301", "gqa-ratio", Severity.ERROR, gqa_ratio),
    Rule("DP302", "route-ignored", Severity.WARNING, route),
)
