"""The hardware that is compiled for."""

from collections.abc import Iterator
from difflib import get_close_matches

from dualpace.diagnostic import Severity
from dualpace.lint.rule import Finding, LintContext, Rule
from dualpace.plan.quantity import size_text, time_text
from dualpace.plan.targets import GPUS

# GeForce cards of these generations have no NVLink, and their drivers refuse peer access over PCIe.
NO_PEERS = ("rtx4090", "rtx3060")
SLOWEST_TOKEN = 0.5


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
        help_ = f"did you mean `{close[0]}`?" if close else f"known are {', '.join(GPUS)}; without a GPU, `cpu: true`"
        yield Finding(("target", "gpu"), f"target.gpu {gpu} is not a known GPU", help_)


def one_cpu(context: LintContext) -> Iterator[Finding]:
    """Cards are counted, hosts are not."""
    target = context.spec.target
    if target.cpu and target.count > 1:
        message = f"target.count is {target.count}, but the CPU engine runs once a host"
        yield Finding(("target", "count"), message, "remove it", removable=True)


def cards_share_heads(context: LintContext) -> Iterator[Finding]:
    """Cards share the KV heads evenly."""
    count, shape = context.spec.target.count, context.spec.model.shape
    if shape and shape.kv_heads % count:
        message = f"target.count is {count}, and {count} cards cannot share {shape.kv_heads} kv_heads evenly"
        even = [str(n) for n in range(1, count) if shape.kv_heads % n == 0]
        yield Finding(("target", "count"), message, f"write {even[-1]}" if even else "write 1")


def peer_access(context: LintContext) -> Iterator[Finding]:
    """Cards that work together reach each other's memory."""
    gpu, count = context.spec.target.gpu, context.spec.target.count
    if gpu and gpu.lower() in NO_PEERS and count > 1:
        message = f"target.count is {count}, but drivers let no {gpu} reach another's memory"
        yield Finding(("target", "count"), message, "write 1 and run a replica on each card, or choose another gpu")


def cpu_pace(context: LintContext) -> Iterator[Finding]:
    """The CPU engine writes a model's answers at a readable pace."""
    plan = context.plan
    if plan and plan.target.kind == "cpu":
        seconds = plan.weight_bytes / plan.target.read_bandwidth
        if seconds > SLOWEST_TOKEN:
            message = (
                f"target.cpu reads {size_text(plan.weight_bytes)} of weights for each token, which takes "
                f"{time_text(seconds)} at {plan.target.read_bandwidth / 1e9:g} GB/s"
            )
            yield Finding(("target", "cpu"), message, "choose a gpu or a smaller model")


TARGET_RULES = (
    Rule("DP601", "target-kind", Severity.ERROR, one_kind),
    Rule("DP602", "unknown-gpu", Severity.ERROR, known_gpu),
    Rule("DP603", "cpu-count", Severity.ERROR, one_cpu),
    Rule("DP604", "cards-share-heads", Severity.ERROR, cards_share_heads),
    Rule("DP605", "peer-access", Severity.WARNING, peer_access),
    Rule("DP606", "cpu-pace", Severity.WARNING, cpu_pace),
)
