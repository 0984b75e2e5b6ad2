"""KV beyond device memory."""

from collections.abc import Iterator

from dualpace.diagnostic import Severity
from dualpace.lint.rule import Finding, LintContext, Rule
from dualpace.plan.paging import KvLayout
from dualpace.plan.quantity import size_text, time_text
from dualpace.plan.recall import PINNING

# Read on an H200 behind PCIe 5 x16: the block below which gathering blocks falls short of the link's bandwidth.
LEAST_BLOCK = 8 * 2**10
LONGEST_PINNING = 60.0
SLOWEST_TOKEN = 0.25


def budget(context: LintContext) -> Iterator[Finding]:
    """Offloading needs to know how much host memory it may pin."""
    offload = context.spec.offload
    if offload.mode != "off" and offload.host_budget is None:
        message = f"offload.mode is {offload.mode}, but offload.host_budget is absent"
        yield Finding(("offload", "mode"), message, "add `host_budget:`, all cards together, such as 64GiB")


def ignored(context: LintContext) -> Iterator[Finding]:
    """Settings of an offload that is off, or of another mode."""
    offload = context.spec.offload
    if offload.mode == "off":
        for name in ("host_budget", "selection"):
            if name in offload.model_fields_set:
                message = f"offload.{name} has no effect with mode off"
                yield Finding(
                    ("offload", name),
                    message,
                    "remove it, or set `mode: recall` or `mode: cooperative`",
                    removable=True,
                )
    if offload.mode != "cooperative" and "cpu_workers" in offload.model_fields_set:
        message = f"offload.cpu_workers has no effect with mode {offload.mode}"
        yield Finding(("offload", "cpu_workers"), message, "remove it, or set `mode: cooperative`", removable=True)


def on_cpu(context: LintContext) -> Iterator[Finding]:
    """The CPU engine's KV is in host memory already."""
    mode = context.spec.offload.mode
    if context.spec.target.cpu and mode != "off":
        message = (
            f"offload.mode is {mode}, but the CPU engine's KV is in host memory already: copies cost and save nothing"
        )
        yield Finding(
            ("offload", "mode"), message, "write `mode: off`; target.kv_budget sizes the KV. To try offload out, go on"
        )


def idle(context: LintContext) -> Iterator[Finding]:
    """There is KV that does not fit the card."""
    plan = context.plan
    if plan is None or plan.offload.mode == "off" or plan.target.kind == "cpu":
        return
    layout = KvLayout(plan.model, plan.attention.page_size, plan.schedule.prefill_chunk, plan.target.count)
    if plan.schedule.max_batch * layout.row_bytes(plan.schedule.max_context) <= plan.memory.kv:
        message = (
            f"offload.mode is {plan.offload.mode}, but the KV of {plan.schedule.max_batch} rows of "
            f"{plan.schedule.max_context} tokens fits the {plan.target.name}"
        )
        yield Finding(("offload", "mode"), message, "write `mode: off`, or raise max_batch or max_context")


def selects_all(context: LintContext) -> Iterator[Finding]:
    """A sparse selection leaves something out."""
    plan = context.plan
    if plan is None or plan.offload.mode == "off" or not plan.offload.sparse_blocks:
        return
    tokens = plan.offload.sparse_blocks * plan.attention.page_size
    if tokens >= plan.schedule.max_context:
        message = (
            f"offload.selection.blocks {plan.offload.sparse_blocks} are {tokens} tokens, which is all of max_context "
            f"{plan.schedule.max_context}"
        )
        yield Finding(("offload", "selection", "blocks"), message, "write `selection: exact`, or lower it")


def few_blocks(context: LintContext) -> Iterator[Finding]:
    """A sparse selection has something to choose."""
    refusal = context.refusal
    if refusal and refusal.path == ("offload", "selection", "blocks"):
        yield Finding(refusal.path, f"offload.selection.blocks: {refusal.message}", refusal.help)


def lossy(context: LintContext) -> Iterator[Finding]:
    """Answers are exact."""
    if context.spec.offload.mode != "off" and context.spec.offload.selection != "exact":
        message = (
            "offload.selection is sparse: extraction and aggregation over long contexts lose accuracy, also where "
            "needle tests pass"
        )
        yield Finding(("offload", "selection"), message, "measure on your tasks, or write `selection: exact`")


def small_blocks(context: LintContext) -> Iterator[Finding]:
    """Blocks are large enough for the link to host memory."""
    plan = context.plan
    if plan is None or plan.offload.mode == "off" or plan.target.kind == "cpu":
        return
    block = plan.pages[0].block_bytes
    if block < LEAST_BLOCK:
        size = plan.attention.page_size * -(-LEAST_BLOCK // block)
        message = (
            f"attention.page_size {plan.attention.page_size} makes blocks of {size_text(block)}, and the link to host "
            f"memory slows down below {size_text(LEAST_BLOCK)}"
        )
        yield Finding(("attention", "page_size"), message, f"raise it to {min(1 << (size - 1).bit_length(), 128)}")


def recall_pace(context: LintContext) -> Iterator[Finding]:
    """Recalling all of a long row for each of its tokens keeps a readable pace."""
    plan = context.plan
    if plan is None or not plan.recall or plan.offload.sparse_blocks:
        return
    longest, rate = plan.recall[-1], plan.target.link_bandwidth * plan.target.count
    seconds = longest.row_bytes / rate
    if seconds > SLOWEST_TOKEN:
        message = (
            f"offload.mode recall brings all that a row has not on the card back for each token: at {longest.context} "
            f"tokens that takes {time_text(seconds)} at {rate / 1e9:.3g} GB/s"
        )
        yield Finding(("offload", "mode"), message, "write `mode: cooperative`, or `selection: {blocks: 256}`")


def pinning(context: LintContext) -> Iterator[Finding]:
    """Pinning the host budget does not take a noticeable part of a start."""
    host = context.spec.offload.host_budget
    if context.spec.offload.mode == "off" or host is None or host * PINNING <= LONGEST_PINNING:
        return
    message = f"offload.host_budget {size_text(host)} takes about {host * PINNING:.0f} s to pin at every start"
    help_ = "give start-up probes that long, and the container a memory limit above it"
    yield Finding(("offload", "host_budget"), message, help_)


OFFLOAD_RULES = (
    Rule("DP501", "host-budget", Severity.ERROR, budget),
    Rule("DP502", "offload-ignored", Severity.WARNING, ignored),
    Rule("DP503", "offload-on-cpu", Severity.WARNING, on_cpu),
    Rule("DP504", "offload-idle", Severity.WARNING, idle),
    Rule("DP505", "selects-all", Severity.WARNING, selects_all),
    Rule("DP506", "lossy-selection", Severity.NOTE, lossy),
    Rule("DP507", "small-blocks", Severity.WARNING, small_blocks),
    Rule("DP508", "recall-pace", Severity.WARNING, recall_pace),
    Rule("DP509", "pinning-time", Severity.NOTE, pinning),
    Rule("DP510", "few-blocks", Severity.ERROR, few_blocks),
)
