"""Memory: what does not fit, what fits in part, and what takes room from the KV."""

from collections.abc import Iterator

from dualpace.diagnostic import Severity
from dualpace.lint.rule import Finding, LintContext, Rule
from dualpace.plan.capacity import MAX_BATCH, MIN_ROW_TOKENS
from dualpace.plan.error import CapacityError, PlanError
from dualpace.plan.memory import LEAST_SAMPLES
from dualpace.plan.paging import KvLayout
from dualpace.plan.plan import Plan
from dualpace.plan.quantity import size_text
from dualpace.plan.targets import GPUS

CARDS = (2, 4, 8)
# A CUDA context, the loaded modules and cuBLAS's workspaces.
CUDA_BYTES = 768 * 2**20
MOST_SCRATCH, MOST_LOGITS, MOST_HISTORY = 1 / 8, 1 / 16, 1 / 16


def weights_fit(context: LintContext) -> Iterator[Finding]:
    """Weights and buffers leave room for KV on the target."""
    if refusal := _refusal(context, "target"):
        yield Finding(refusal.path, f"target: {refusal.message}", _what_fits(context) or refusal.help)


def kv_budget_fits(context: LintContext) -> Iterator[Finding]:
    """The KV budget is within what weights and buffers leave, and holds a page."""
    if refusal := _refusal(context, "target", "kv_budget"):
        yield Finding(refusal.path, f"target.kv_budget: {refusal.message}", refusal.help)


def context_fits(context: LintContext) -> Iterator[Finding]:
    """The KV of one row of the longest context fits."""
    if refusal := _refusal(context, "model", "max_context"):
        larger = _larger_targets(context)
        help_ = f"{refusal.help}; it fits {larger}" if larger else refusal.help
        yield Finding(refusal.path, f"model.max_context: {refusal.message}", help_)


def batch_fits(context: LintContext) -> Iterator[Finding]:
    """Every row of a full batch has at least a page of KV."""
    if refusal := _refusal(context, "scheduler", "max_batch"):
        largest = _largest_batch(context)
        help_ = f"lower it to {largest}, or raise target.kv_budget" if largest else refusal.help
        yield Finding(refusal.path, f"scheduler.max_batch: {refusal.message}", help_)


def queue_holds_prompt(context: LintContext) -> Iterator[Finding]:
    """The queue has room for the longest prompt that is accepted."""
    if refusal := _refusal(context, "scheduler", "max_queued_tokens"):
        yield Finding(refusal.path, f"scheduler.max_queued_tokens: {refusal.message}", refusal.help)


def context_reduced(context: LintContext) -> Iterator[Finding]:
    """A context that is left to the plan is the model's."""
    plan = context.plan
    if plan and context.spec.model.max_context == "auto" and plan.schedule.max_context < plan.model.context:
        message = (
            f"model.max_context auto is {plan.schedule.max_context} tokens: memory does not hold the "
            f"{plan.model.context} that the model supports"
        )
        yield Finding(("model", "max_context"), message, "write the number if clients rely on it")


def batch_reduced(context: LintContext) -> Iterator[Finding]:
    """A batch that is left to the plan is the usual one of its kind of target."""
    plan = context.plan
    if plan and context.spec.scheduler.max_batch == "auto" and plan.schedule.max_batch < MAX_BATCH[plan.target.kind]:
        usual = MAX_BATCH[plan.target.kind]
        message = (
            f"scheduler.max_batch auto is {plan.schedule.max_batch} rows: memory does not give {usual} rows "
            f"{MIN_ROW_TOKENS} tokens of KV each"
        )
        yield Finding(("scheduler", "max_batch"), message, "write the number if load tests rely on it")


def lone_row(context: LintContext) -> Iterator[Finding]:
    """Two rows of the promised context fit at a time."""
    plan = context.plan
    if plan is None or context.spec.model.max_context == "auto" or plan.offload.mode != "off":
        return
    if plan.schedule.max_batch > 1 and _rows(plan, plan.schedule.max_context) < 2:
        half = max(plan.schedule.max_context // 2, plan.attention.page_size)
        message = (
            f"model.max_context is {plan.schedule.max_context}, and the KV holds one row of that length: while it runs "
            "nothing else does"
        )
        help_ = f"lower it to about {half} for two at a time, or give the KV more memory"
        yield Finding(("model", "max_context"), message, help_)


def starved_batch(context: LintContext) -> Iterator[Finding]:
    """A full batch has KV for a short conversation in every row."""
    plan = context.plan
    if plan is None or context.spec.scheduler.max_batch == "auto" or plan.offload.mode != "off":
        return
    tokens = min(MIN_ROW_TOKENS, plan.schedule.max_context)
    largest = _rows(plan, tokens)
    if largest < plan.schedule.max_batch:
        message = (
            f"scheduler.max_batch is {plan.schedule.max_batch}, but the KV holds {largest} rows of {tokens} tokens: "
            "a full batch is preempted and recomputed over and over"
        )
        yield Finding(("scheduler", "max_batch"), message, f"lower it to {largest}, or give the KV more memory")


def idle_memory(context: LintContext) -> Iterator[Finding]:
    """A KV budget below what rows could use leaves less than half of the card idle."""
    plan = context.plan
    if plan is None or plan.target.kind == "cpu" or context.spec.target.kv_budget == "auto":
        return
    rows = _rows(plan, plan.schedule.max_context)
    if plan.memory.free > plan.memory.limit / 2 and rows < plan.schedule.max_batch:
        message = (
            f"target.kv_budget is {size_text(context.spec.target.kv_budget)} and leaves {size_text(plan.memory.free)} "
            f"unused, while the KV holds {rows} of {plan.schedule.max_batch} rows at max_context"
        )
        yield Finding(("target", "kv_budget"), message, "raise it, or write auto")


def step_scratch(context: LintContext) -> Iterator[Finding]:
    """Activations of the largest step take a small part of the memory."""
    plan = context.plan
    if plan and plan.memory.activations > MOST_SCRATCH * plan.memory.limit:
        message = (
            f"scheduler.prefill_chunk of {plan.schedule.prefill_chunk} tokens makes the activations of a step "
            f"{_share(plan, plan.memory.activations)}"
        )
        yield Finding(("scheduler", "prefill_chunk"), message, "lower it; KV takes what it frees")


def logits(context: LintContext) -> Iterator[Finding]:
    """The logits of a full batch take a small part of the memory."""
    plan = context.plan
    if plan and plan.schedule.max_batch > LEAST_SAMPLES and plan.memory.logits > MOST_LOGITS * plan.memory.limit:
        message = (
            f"scheduler.max_batch of {plan.schedule.max_batch} rows makes the logits over {plan.model.vocab} tokens "
            f"{_share(plan, plan.memory.logits)}"
        )
        yield Finding(("scheduler", "max_batch"), message, "lower it; KV takes what it frees")


def history(context: LintContext) -> Iterator[Finding]:
    """The token history of waiting prompts takes a small part of the memory."""
    plan = context.plan
    if plan and plan.memory.history > MOST_HISTORY * plan.memory.limit:
        schedule = plan.schedule
        by_tokens = schedule.max_queued_tokens >= schedule.max_queued_requests * schedule.history_page
        name = "max_queued_tokens" if by_tokens else "max_queued_requests"
        message = (
            f"scheduler.{name} of {getattr(schedule, name)} makes the token history {_share(plan, plan.memory.history)}"
        )
        yield Finding(("scheduler", name), message, "lower it; clients beyond the queue are told to come back")


def headroom(context: LintContext) -> Iterator[Finding]:
    """CUDA itself has room beside the engine."""
    plan, fraction = context.plan, context.spec.target.memory_fraction
    if plan is None or plan.target.kind == "cpu":
        return
    left = plan.target.memory - plan.memory.limit
    if left < CUDA_BYTES:
        most = int((1 - CUDA_BYTES / plan.target.memory) * 100) / 100
        message = (
            f"target.memory_fraction {fraction:g} leaves {size_text(left)} of the {plan.target.name} for the CUDA "
            f"context and libraries, which take about {size_text(CUDA_BYTES)}"
        )
        yield Finding(("target", "memory_fraction"), message, f"lower it to {most:g}")


def _refusal(context: LintContext, *path: str) -> CapacityError | None:
    refusal = context.refusal
    return refusal if isinstance(refusal, CapacityError) and refusal.path == path else None


def _fits(context: LintContext, section: str, **values: object) -> bool:
    changed = getattr(context.spec, section).model_copy(update=values)
    try:
        context.resolve(context.spec.model_copy(update={section: changed}))
    except PlanError:
        return False
    return True


def _what_fits(context: LintContext) -> str:
    """Single changes with which the deployment fits, "" if there are none."""
    found = [_larger_targets(context)]
    if largest := _largest_batch(context):
        found.append(f"with max_batch {largest}")
    return "it fits " + ", or ".join(filter(None, found)) if any(found) else ""


def _larger_targets(context: LintContext) -> str:
    """Cards on which the deployment fits, least memory first, and the number of its own with which it does."""
    if context.spec.target.cpu:
        return ""
    cards = sorted(GPUS.values(), key=lambda gpu: gpu.memory)
    found = [gpu.name for gpu in cards if _fits(context, "target", gpu=gpu.name)][:3]
    count = next((n for n in CARDS if n > context.spec.target.count and _fits(context, "target", count=n)), None)
    return " or ".join([*found, *([f"{count} cards"] if count else [])])


def _largest_batch(context: LintContext) -> int:
    """The largest max_batch with which the deployment fits; 0 if none does or it is auto."""
    asked = context.spec.scheduler.max_batch
    low, high = 0, asked if asked != "auto" else 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _fits(context, "scheduler", max_batch=middle) else (low, middle - 1)
    return low


def _rows(plan: Plan, tokens: int) -> int:
    """Rows of `tokens` tokens that the KV of `plan` holds at a time."""
    layout = KvLayout(plan.model, plan.attention.page_size, plan.schedule.prefill_chunk, plan.target.count)
    return min(
        pool.pages // layout.row_pages(group, tokens) for group, pool in zip(plan.model.groups, plan.pages, strict=True)
    )


def _share(plan: Plan, size: int) -> str:
    return f"{size_text(size)}, {size / plan.memory.limit:.0%} of the memory"


MEMORY_RULES = (
    Rule("DP803", "weights-fit", Severity.ERROR, weights_fit),
    Rule("DP804", "kv-budget-fits", Severity.ERROR, kv_budget_fits),
    Rule("DP805", "context-fits", Severity.ERROR, context_fits),
    Rule("DP806", "batch-fits", Severity.ERROR, batch_fits),
    Rule("DP807", "queue-holds-prompt", Severity.ERROR, queue_holds_prompt),
    Rule("DP808", "context-reduced", Severity.NOTE, context_reduced),
    Rule("DP809", "batch-reduced", Severity.NOTE, batch_reduced),
    Rule("DP810", "lone-row", Severity.WARNING, lone_row),
    Rule("DP811", "starved-batch", Severity.WARNING, starved_batch),
    Rule("DP812", "idle-memory", Severity.WARNING, idle_memory),
    Rule("DP813", "step-scratch", Severity.WARNING, step_scratch),
    Rule("DP814", "logits-share", Severity.WARNING, logits),
    Rule("DP815", "history-share", Severity.WARNING, history),
    Rule("DP816", "cuda-headroom", Severity.WARNING, headroom),
)
