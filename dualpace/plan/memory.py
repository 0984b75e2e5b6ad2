"""The memory map of one device, from the plan's capacities. Bytes; KV is paging's."""

from dualpace.plan.plan import Model
from dualpace.plan.program import buffers
from dualpace.plan.structs import MAX_BIAS, MAX_STOP_TOKENS, MAX_TOP_LOGPROBS

HISTORY_PAGE = 256
TOKEN_BYTES = 4


def activation_bytes(model: Model, rows: int, tokens: int) -> int:
    """Activation buffers of the largest step, without logits."""
    leading = {"T": tokens, "R": rows}
    elements = sum(leading[dim] * width for name, (dim, width) in buffers(model).items() if name != "logits")
    return elements * model.element_bytes


def partial_bytes(model: Model, tasks: int) -> int:
    """FP32 outputs of attention tasks with their LSE, to be merged."""
    return tasks * model.heads * (model.head_dim + 1) * 4


def logit_bytes(model: Model, rows: int) -> int:
    """FP32 logits of the sampled rows."""
    return rows * model.vocab * 4


def scheduler_bytes(
    model: Model, rows: int, tokens: int, context: int, page_size: int, requests: int, pages: int
) -> int:
    """Step buffers, block tables, states of requests and of `pages` pages a group, to within a few percent."""
    groups = len(model.groups)
    step = tokens * (3 + groups) + rows * (8 + 2 * MAX_TOP_LOGPROBS + groups * -(-context // page_size))
    request = 32 + MAX_STOP_TOKENS + 2 * MAX_BIAS + -(-context // HISTORY_PAGE)
    return 4 * (step + requests * request + groups * pages * 3)


def history_pages(queued_tokens: int, queued_requests: int, active_tokens: int, rows: int) -> int:
    """Pages of token history: every waiting prompt and every running row, each with one page partly filled."""
    return -(-queued_tokens // HISTORY_PAGE) + queued_requests + -(-active_tokens // HISTORY_PAGE) + rows


def history_bytes(pages: int) -> int:
    """Bytes of that many pages of token history."""
    return pages * HISTORY_PAGE * TOKEN_BYTES
