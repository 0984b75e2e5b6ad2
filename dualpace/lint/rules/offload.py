"""KV beyond device memory."""

from collections.abc import Iterator

from dualpace.diagnostic import Severity
from dualpace.lint.rule import REMOVE, Finding, LintContext, Rule


def budget(context: LintContext) -> Iterator[Finding]:
    """Offloading needs to know how much host memory it may pin."""
    offload = context.spec.offload
    if offload.mode != "off" and offload.host_budget is None:
        message = f"offload.mode is {offload.mode}, but offload.host_budget is absent"
        yield Finding(("offload", "mode"), message, "add `host_budget:`, all cards together, such as 64GiB")


def ignored(context: LintContext) -> Iterator[Finding]:
    """Settings of an offload that is off."""
    offload = context.spec.offload
    if offload.mode == "off":
        for name in ("host_budget", "selection"):
            if name in offload.model_fields_set:
                message = f"offload.{name} has no effect with mode off"
                yield Finding(
                    ("offload", name), message, "remove it, or set `mode: recall` or `mode: cooperative`", REMOVE
                )


def on_cpu(context: LintContext) -> Iterator[Finding]:
    """The CPU engine's KV is in host memory already."""
    mode = context.spec.offload.mode
    if context.spec.target.cpu and mode != "off":
        message = f"offload.mode is {mode}, but the CPU engine's KV is in host memory already"
        yield Finding(("offload", "mode"), message, "write `mode: off`; target.kv_budget sizes the KV")


OFFLOAD_RULES = (
    Rule("DP501", "host-budget", Severity.ERROR, budget),
    Rule("DP502", "offload-ignored", Severity.WARNING, ignored),
    Rule("DP503", "offload-on-cpu", Severity.ERROR, on_cpu),
)
