"""Scheduling: batches, prompts and the queue."""

from collections.abc import Iterator

from dualpace.diagnostic import Severity
from dualpace.lint.rule import Finding, LintContext, Rule
from dualpace.plan.quantity import time_text
from dualpace.plan.roofline import layer_elements

# A prompt step longer than this is a pause that readers of a stream notice.
LONGEST_PAUSE = 0.25


def short_queue(context: LintContext) -> Iterator[Finding]:
    """The queue is at least a batch long, so that a burst that could run is not refused."""
    plan = context.plan
    if plan and plan.schedule.max_queued_requests < plan.schedule.max_batch:
        message = (
            f"scheduler.max_queued_requests is {plan.schedule.max_queued_requests}, below max_batch "
            f"{plan.schedule.max_batch}: a burst is refused although it could run"
        )
        help_ = f"raise it to {plan.schedule.max_batch} or more"
        yield Finding(("scheduler", "max_queued_requests"), message, help_)


def small_chunk(context: LintContext) -> Iterator[Finding]:
    """Prompt steps have enough tokens to be worth reading the weights for."""
    plan = context.plan
    if plan is None or plan.target.kind == "cpu" or context.spec.scheduler.prefill_chunk == "auto":
        return
    balanced = plan.target.flops * plan.model.element_bytes / (2 * plan.target.read_bandwidth)
    chunk = plan.schedule.prefill_chunk
    if chunk < min(balanced / 2, plan.schedule.max_context):
        message = (
            f"scheduler.prefill_chunk is {chunk}: reading the weights for so few tokens keeps prompts at "
            f"{chunk / balanced:.0%} of the {plan.target.name}'s rate"
        )
        help_ = f"raise it to {1 << int(balanced).bit_length()} or more, or write auto"
        yield Finding(("scheduler", "prefill_chunk"), message, help_)


def long_pause(context: LintContext) -> Iterator[Finding]:
    """A prompt step does not hold up the rows that are decoding for long."""
    plan = context.plan
    if plan is None or plan.target.kind == "cpu":
        return
    rate = plan.target.flops * plan.target.count / (2 * layer_elements(plan.model))
    chunk = plan.schedule.prefill_chunk
    if chunk / rate > LONGEST_PAUSE:
        message = (
            f"scheduler.prefill_chunk is {chunk}: each step with a prompt holds up running rows for at least "
            f"{time_text(chunk / rate)}"
        )
        largest = 1 << int(LONGEST_PAUSE * rate).bit_length() - 1
        yield Finding(("scheduler", "prefill_chunk"), message, f"lower it to {largest}")


SCHEDULER_RULES = (
    Rule("DP331", "short-queue", Severity.WARNING, short_queue),
    Rule("DP332", "small-chunk", Severity.WARNING, small_chunk),
    Rule("DP333", "long-pause", Severity.WARNING, long_pause),
)
