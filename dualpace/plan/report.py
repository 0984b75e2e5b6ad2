"""A plan as people read it, and as JSON: the Plan itself, which `Plan.model_validate_json` reads back."""

from collections.abc import Iterator, Sequence
from textwrap import indent

from dualpace.plan.plan import Floor, Plan
from dualpace.plan.quantity import size_text, time_text

# Docker's default size of /dev/shm.
SHM_DEFAULT = 64 * 2**20


def json_report(plan: Plan) -> str:
    """The plan as JSON."""
    return plan.model_dump_json(indent=2) + "\n"


def text_report(plan: Plan) -> str:
    """The plan at a glance."""
    sections = (
        (f"{plan.name}: {plan.model.family} on {_hardware(plan)}", _model(plan)),
        (f"KV pages of {plan.attention.page_size} tokens", _pages(plan)),
        ("step programs", _programs(plan)),
        ("memory of one card" if plan.target.kind == "cuda" else "memory", _memory(plan)),
        ("rings", _rings(plan)),
        (_roofline_title(plan), _roofline(plan)),
    )
    return "\n".join(f"{title}\n{indent(_table(list(rows)), '  ')}" for title, rows in sections)


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width: the first to the left, cells that begin with a digit to the right."""
    widths = [max((len(row[i]) for row in rows if i < len(row) - 1), default=0) for i in range(max(map(len, rows)))]
    lines = (
        "  ".join(cell.rjust(width) if i and cell[:1].isdigit() else cell.ljust(width) for i, (cell, width) in cells)
        for cells in (enumerate(zip(row, widths, strict=False)) for row in rows)
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _hardware(plan: Plan) -> str:
    target = plan.target
    cards = f"{target.count} x {target.name}" if target.count > 1 else target.name
    return f"{cards} (sm_{target.sm})" if target.sm else cards


def _model(plan: Plan) -> Iterator[tuple[str, ...]]:
    model, weights = plan.model, plan.weights
    yield "layers", f"{model.layers} of hidden {model.hidden:,}, MLP {model.intermediate:,}, vocabulary {model.vocab:,}"
    yield "heads", f"{model.heads} query, {model.kv_heads} KV, GQA {model.gqa_ratio}, head_dim {model.head_dim}"
    yield "parameters", f"{plan.parameters:,}"
    yield "weights", f"{size_text(plan.weight_bytes)} of {model.dtype}"
    yield "", f"seeded random, seed {weights.seed}" if weights.kind == "random" else weights.path or weights.hub
    yield "context", f"{plan.schedule.max_context:,} of the model's {model.context:,} tokens"
    yield "KV", f"{size_text(plan.kv_bytes_per_token)} a token"
    if plan.offload.mode != "off":
        selection = f"{plan.offload.sparse_blocks} blocks a row and layer" if plan.offload.sparse_blocks else "exact"
        yield "offload", f"{plan.offload.mode}, {selection}, {size_text(plan.offload.host_budget)} of host memory"


def _pages(plan: Plan) -> Iterator[tuple[str, ...]]:
    yield "group", "layers", "window", "pages", "a page", "together", "tokens"
    for group, pool in zip(plan.model.groups, plan.pages, strict=True):
        yield (
            group.name,
            str(len(group.layers)),
            f"{group.window:,}" if group.window else "none",
            f"{pool.pages:,}",
            size_text(pool.page_bytes),
            size_text(pool.pages * pool.page_bytes),
            f"{pool.pages * plan.attention.page_size:,}",
        )


def _programs(plan: Plan) -> Iterator[tuple[str, ...]]:
    schedule = plan.schedule
    decode = ", ".join(str(program.rows) for program in schedule.programs if program.kind == "decode")
    yield "decode", f"up to {decode} rows"
    for program in schedule.programs:
        if program.kind == "mixed":
            yield (
                "mixed",
                f"up to {program.rows} rows, {program.tokens:,} tokens, {schedule.prefill_chunk:,} of prefill",
            )
    yield "queue", f"{schedule.max_queued_requests:,} requests, {schedule.max_queued_tokens:,} prompt tokens"


def _memory(plan: Plan) -> Iterator[tuple[str, ...]]:
    memory = plan.memory
    for name in ("weights", "kv", "activations", "logits", "history", "scheduler", "free"):
        yield "KV" if name == "kv" else name, size_text(getattr(memory, name))
    nominal = ", nominal" if plan.target.source == "nominal" else ""
    yield "limit", f"{size_text(memory.limit)} of {size_text(plan.target.memory)}{nominal}"


def _rings(plan: Plan) -> Iterator[tuple[str, ...]]:
    rings = plan.rings
    slots = (
        f"{rings.request_slots:,} requests, {rings.token_slots:,} tokens, {size_text(4 * rings.arena_words)} of prompts"
    )
    yield f"{rings.rings} x {rings.transport}", slots
    remedy = f"; a container needs --shm-size {-(-rings.bytes // 2**20)}m" if rings.bytes > SHM_DEFAULT else ""
    yield "memory", size_text(rings.bytes) + remedy


def _roofline_title(plan: Plan) -> str:
    target = plan.target
    rates = f"{target.count * target.read_bandwidth / 1e9:,.0f} GB/s, {target.count * target.flops / 1e12:,.3g} TFLOP/s"
    source = f"{target.source}; nothing was probed" if target.source == "nominal" else target.source
    return f"least time of a decode step, and what takes most of it ({rates}; {source})"


def _roofline(plan: Plan) -> Iterator[tuple[str, ...]]:
    contexts = sorted({floor.context for floor in plan.floors})
    cells = {(floor.rows, floor.context): floor for floor in plan.floors}
    yield "", *(f"{context:,} tokens" for context in contexts)
    for rows in sorted({floor.rows for floor in plan.floors}):
        present = [cells.get((rows, context)) for context in contexts]
        yield f"{rows} row{'s' * (rows > 1)}", *(_cell(floor) if floor else "" for floor in present)


def _cell(floor: Floor) -> str:
    if floor.kv_seconds > max(floor.weight_seconds, floor.flop_seconds):
        cause = "KV"
    else:
        cause = "weights" if floor.bound == "bandwidth" else "compute"
    return f"{time_text(floor.seconds)} {cause}"
