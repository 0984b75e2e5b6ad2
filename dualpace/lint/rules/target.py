"""The hardware that is compiled for."""

from collections.abc import Iterator
from difflib import get_close_matches

from dualpace.diagnostic import Severity
from dualpace.lint.rule import REMOVE, Finding, LintContext, Rule
from dualpace.plan.targets import GPUS


def one_kind(context: LintContext) -> Iterator[Finding]:
    """A deployment runs on a GPU or on the CPU."""
    target = context.spec.target
    if target.gpu and target.cpu:
        yield Finding(("target", "gpu"), f"target names both gpu {target.gpu} and cpu", "keep one of the two")
    elif not (target.gpu or target.cpu):
        yield Finding(("target",), "target names neither gpu nor cpu", "add `gpu: h200`, or `cpu: true`")


def known_gpu(context: LintContext) -> Iterator[Finding]:
    """The planner knows the card's memory and rates."""
    gpu = context.spec.target.gpu
    if gpu is not None and gpu.lower() not in GPUS:
        close = get_close_matches(gpu.lower().replace(" ", ""), GPUS, 1)
        help_ = f"did you mean `{close[0]}`?" if close else f"known are {', '.join(GPUS)}"
        yield Finding(("target", "gpu"), f"target.gpu {gpu} is not a known GPU", help_)


def one_cpu(context: LintContext) -> Iterator[Finding]:
    """Cards are counted, hosts are not."""
    target = context.spec.target
    if target.cpu and target.count > 1:
        message = f"target.count is {target.count}, but the CPU engine runs once a host"
        yield Finding(("target", "count"), message, "remove it", REMOVE)


TARGET_RULES = (
    Rule("DP601", "target-kind", Severity.ERROR, one_kind),
    Rule("DP602", "unknown-gpu", Severity.ERROR, known_gpu),
    Rule("DP603", "cpu-count", Severity.ERROR, one_cpu),
)
