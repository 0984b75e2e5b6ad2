"""The memory map of one device, from the plan's capacities. Bytes; KV is paging's."""

from dualpace.plan.attention_cost import slice_heads, slices
from dualpace.plan.plan import Model, PrefillKernel
from dualpace.plan.program import buffers
from dualpace.plan.structs import MAX_BIAS, MAX_STOP_TOKENS, MAX_TOP_LOGPROBS

HISTORY_PAGE = 256
WORD_BYTES = 4
TOKEN_BYTES = 4
# Tokens of history for each token of KV: some 300 bytes beside a hundred thousand.
LIVES_PER_KV = 64
FP32_BYTES = 4
# A step has logits of at least so many tokens, for prompts whose logprobs are wanted: the head's product takes about as
# long for them as for one. Beyond that a prompt has those that the batch's rows leave.
LEAST_SAMPLES = 64
# On the CPU: rows of a weight-streaming product, elements of a weight that are widened to fp32 at a time for a product
# by torch, and bytes of an attention task.
STREAMED_ROWS = 16
WIDENED_ELEMENTS = 16 << 20
TASK_BYTES = 32
# On a GPU: words of an attention task, and shares of a list of them.
TASK_WORDS = 8
MAX_SHARES = 1024
# The same of a list of prefill; packed rows of its tiles, half as many for large heads with mma, and of a warp.
PREFILL_TASK_WORDS = 12
MAX_PREFILL_SHARES = 256
PREFILL_TILE_ROWS = 128
PREFILL_WARP_ROWS = 16


def activation_bytes(model: Model, samples: int, tokens: int) -> int:
    """Activation buffers of the largest step on a GPU, without logits, and rotary angles.

    In the model's dtype; the residual and angles are FP32.
    """
    widened = tokens * model.hidden * (FP32_BYTES - model.element_bytes)
    return _activations(model, samples, tokens) * model.element_bytes + widened + _angles(model, tokens) * FP32_BYTES


def _angles(model: Model, tokens: int) -> int:
    return len(model.groups) * tokens * model.head_dim


def _activations(model: Model, samples: int, tokens: int) -> int:
    leading = {"T": tokens, "S": samples}
    return sum(leading[dim] * width for name, (dim, width) in buffers(model).items() if name != "logits")


def attention_bytes(model: Model, tokens: int, spare_tasks: int) -> int:
    """Attention's lists of tasks and partial results on a GPU: of `tokens` tokens, and for splitting the long rows."""
    count = slices(model)
    tasks = (tokens + spare_tasks) * count
    lists = len(model.groups) * attention_list_bytes(tokens, count, tasks)
    return lists + _partial_bytes(model, tasks * slice_heads(model))


def attention_list_bytes(tokens: int, slices: int, tasks: int) -> int:
    """One layer group's list of up to `tasks` tasks of the slices of `tokens` tokens: cuda/attention.cuh's."""
    head = 3 + tokens + 1 + MAX_SHARES + slices + tokens * slices
    return WORD_BYTES * (-(-head // TASK_WORDS) + tasks) * TASK_WORDS


def prefill_bytes(model: Model, kernel: PrefillKernel, tokens: int, rows: int) -> int:
    """Lists of prefill tasks and partial results of tiles: PrefillTasks and PrefillPartial of cuda/prefill.cuh."""
    if kernel == "tokens":
        return 0
    tile_rows = PREFILL_TILE_ROWS if kernel == "wgmma" or model.head_dim <= 128 else PREFILL_TILE_ROWS // 2
    warps = tile_rows // PREFILL_WARP_ROWS
    tiles = tokens * model.gqa_ratio // tile_rows + rows
    pairs = tiles * model.kv_heads
    words = 3 + MAX_PREFILL_SHARES + 1 + 2 * tiles + 1 + (2 + warps) * pairs
    words += PREFILL_TASK_WORDS * (pairs + MAX_PREFILL_SHARES)
    lane_words = 4 * (1 + model.head_dim // 8)
    return WORD_BYTES * (len(model.groups) * words + 2 * MAX_PREFILL_SHARES * warps * 32 * lane_words)


def _partial_bytes(model: Model, heads: int) -> int:
    """FP32 outputs of `heads` heads with their LSE, to be merged."""
    return heads * (model.head_dim + 1) * FP32_BYTES


def host_activation_bytes(model: Model, rows: int, samples: int, tokens: int, splits: int) -> int:
    """FP32 activations and rotary angles of the largest step on the CPU, without logits, and its kernels' workspace."""
    inputs = STREAMED_ROWS * max(model.hidden, model.intermediate, model.heads * model.head_dim)
    tasks = rows * splits
    elements = _activations(model, samples, tokens) + _angles(model, tokens) + inputs
    workspace = _line(TASK_BYTES * (tasks + tokens)) + _line(_partial_bytes(model, tasks * model.heads))
    return elements * FP32_BYTES + workspace


def _line(size: int) -> int:
    """`size`, filled up to whole cache lines."""
    return -(-size // 64) * 64


def product_bytes(model: Model, tokens: int) -> int:
    """The most that torch allocates, for as long as it takes, for one product of a prefill chunk on the CPU."""
    heads = model.heads * model.head_dim
    qkv = heads + 2 * model.kv_heads * model.head_dim
    products = ((model.hidden, qkv), (heads, model.hidden), (model.hidden, 2 * model.intermediate))
    return max(
        _product_bytes(model, tokens, size, out) for size, out in (*products, (model.intermediate, model.hidden))
    )


def _product_bytes(model: Model, tokens: int, size: int, out: int) -> int:
    if model.dtype == "fp32":
        return tokens * out * FP32_BYTES
    outs = min(max(WIDENED_ELEMENTS // size, 1), out)
    narrow = tokens * (size + out) * model.element_bytes
    return max(narrow, outs * (size + tokens) * FP32_BYTES)


def logit_bytes(model: Model, samples: int) -> int:
    """FP32 logits of so many tokens."""
    return samples * model.vocab * FP32_BYTES


def scheduler_bytes(
    model: Model, rows: int, samples: int, tokens: int, context: int, page_size: int, requests: int, pages: int
) -> int:
    """Step buffers, and states of requests and of `pages` pages a group with the index of prefixes.

    To within a few percent of what the compiler makes of them.
    """
    groups = len(model.groups)
    step = tokens * (3 + groups) + rows * (4 + groups * -(-context // page_size))
    step += samples * (4 + 2 * MAX_TOP_LOGPROBS)
    request = 40 + MAX_STOP_TOKENS + 2 * MAX_BIAS + -(-context // HISTORY_PAGE)
    page = 6 * groups + 7 + page_size
    return 4 * (step + requests * request + pages * page)


def history_pages(queued_tokens: int, queued_requests: int, kv_tokens: int, context: int, rows: int, rings: int) -> int:
    """Pages of token history: of waiting prompts, each with one page partly filled, and of running rows.

    A row has them for its whole life, and a request that names no length may live up to the context; so rows get many
    times what the KV takes. Each ring is owed the longest prompt and the longest life.
    """
    longest = -(-context // HISTORY_PAGE)
    prompts = -(-queued_tokens // HISTORY_PAGE) + queued_requests
    lives = min(rows * longest, LIVES_PER_KV * -(-kv_tokens // HISTORY_PAGE))
    return max(prompts, rings * longest) + max(lives, rings * longest)


def history_bytes(pages: int, page_size: int) -> int:
    """Bytes of that many pages of token history, with a key for each KV page of `page_size` tokens."""
    keys = HISTORY_PAGE // page_size
    return pages * (HISTORY_PAGE * TOKEN_BYTES + keys * 8 + 4)
