"""A plan as people read it, and as JSON: the Plan itself, which `Plan.model_validate_json` reads back."""

from collections.abc import Iterator

from dualpace.address import shown
from dualpace.plan.bar import BLOCKS, memory_bar
from dualpace.plan.cooperation import DRAM, WORKER
from dualpace.plan.plan import Forecast, Plan
from dualpace.plan.quantity import rate_text, size_text, time_text
from dualpace.plan.table import facts, table

# Docker's default size of /dev/shm.
SHM_DEFAULT = 64 * 2**20
RECALL_NOTE = "recall: of what a token may choose nothing is on the card; with the hits needed the link keeps up\n"

COOPERATION_NOTE = (
    "workers: cores of the host that attend to KV where it lies; of what a token may choose nothing is on the card. "
    "What these rates come to here was not measured\n"
)


def json_report(plan: Plan) -> str:
    """The plan as JSON."""
    return plan.model_dump_json(indent=2) + "\n"


def text_report(plan: Plan, width: int = 100, glyphs: str = BLOCKS) -> str:
    """The plan at a glance; its bar is `width` characters wide and drawn with `glyphs`."""
    sections = (
        (f"{plan.name}: {plan.model.family} on {hardware(plan)}", facts(list(model_facts(plan)))),
        (f"KV pages of {plan.attention.page_size} tokens", _pages(plan)),
        ("step programs", facts(list(program_facts(plan)))),
        (_memory_title(plan), memory_bar(plan, width, glyphs)),
        ("rings", facts(list(_rings(plan)))),
        (f"floor, the least time at {rates(plan)}", _floors(plan)),
        (_forecast_title(plan.forecast), _forecast(plan)),
        *([(_recall_title(plan), _recall(plan))] if plan.recall else []),
        *([(_cooperation_title(plan), _cooperation(plan))] if plan.cooperation else []),
    )
    note = "TTFT: the rows' prompts arrive together at an idle engine; until the last of them has its first token.\n"
    if plan.recall:
        note += RECALL_NOTE
    if plan.cooperation:
        note += COOPERATION_NOTE
    return "\n".join(f"{title}\n{body}" for title, body in sections) + f"\n{note}"


def hardware(plan: Plan) -> str:
    """What the plan is for: `h200 (sm_90a)`."""
    target = plan.target
    cards = f"{target.count} x {target.name}" if target.count > 1 else target.name
    return f"{cards} (sm_{target.sm})" if target.sm else cards


def model_facts(plan: Plan) -> Iterator[tuple[str, ...]]:
    """The model in pairs of what and how."""
    model, weights = plan.model, plan.weights
    yield "layers", f"{model.layers} of hidden {model.hidden:,}, MLP {model.intermediate:,}, vocabulary {model.vocab:,}"
    yield "heads", f"{model.heads} query, {model.kv_heads} KV, GQA {model.gqa_ratio}, head_dim {model.head_dim}"
    yield "parameters", f"{plan.parameters:,}"
    yield "weights", f"{size_text(plan.weight_bytes)} of {model.dtype}"
    yield "", f"seeded random, seed {weights.seed}" if weights.kind == "random" else weights.hub or weights.path
    yield "context", f"{plan.schedule.max_context:,} of the model's {model.context:,} tokens"
    yield "KV", f"{size_text(plan.kv_bytes_per_token)} a token"
    if plan.offload.mode != "off":
        offload = plan.offload
        selection = f"{offload.sparse_blocks} blocks a token and layer" if offload.sparse_blocks else "exact"
        yield "offload", f"{offload.mode}, {selection}, {size_text(offload.host_budget)} of host memory"
        slots = f"{offload.cache_blocks:,} blocks of a layer each on the card"
        yield "", f"{plan.schedule.slow_rows} slow rows, {slots}, {offload.host_pages:,} pages in host memory"


def _pages(plan: Plan) -> str:
    return table(
        ("group", "layers", "window", "pages", "a page", "together", "tokens"),
        [
            (
                group.name,
                str(len(group.layers)),
                f"{group.window:,}" if group.window else "-",
                f"{pool.pages:,}",
                size_text(pool.page_bytes),
                size_text(pool.pages * pool.page_bytes),
                f"{pool.pages * plan.attention.page_size:,}",
            )
            for group, pool in zip(plan.model.groups, plan.pages, strict=True)
        ],
    )


def program_facts(plan: Plan) -> Iterator[tuple[str, ...]]:
    """The step programs and the queue before them, likewise."""
    schedule = plan.schedule
    decode, mixed = (
        [f"{program.tokens:,}" for program in schedule.programs if program.kind == kind] for kind in ("decode", "mixed")
    )
    yield "decode", f"up to {', '.join(decode)} rows"
    samples = max(program.samples for program in schedule.programs)
    kernel = "" if plan.attention.prefill == "tokens" else f", chunks by {plan.attention.prefill}"
    sizes = f"{len(mixed)} sizes of {mixed[0]} to {mixed[-1]}" if len(mixed) > 1 else f"up to {mixed[0]}"
    yield "mixed", f"{sizes} tokens{kernel}, logits of {samples:,}"
    yield "queue", f"{schedule.max_queued_requests:,} requests, {schedule.max_queued_tokens:,} prompt tokens"
    yield "prefixes", "reused" if schedule.prefix_reuse else "computed anew"
    if schedule.park_after:
        yield "idle", f"parks after {time_text(schedule.park_after)}"


def _memory_title(plan: Plan) -> str:
    where = "memory of one card" if plan.target.kind == "cuda" else "memory"
    nominal = ", nominal" if plan.target.source == "nominal" else ""
    return f"{where}: {size_text(plan.memory.limit)} of {size_text(plan.target.memory)}{nominal}"


def _rings(plan: Plan) -> Iterator[tuple[str, ...]]:
    rings = plan.rings
    slots = (
        f"{rings.request_slots:,} requests, {rings.token_slots:,} tokens, {size_text(4 * rings.arena_words)} of prompts"
    )
    yield f"{rings.rings} x {rings.transport}", slots
    remedy = f"; a container needs --shm-size {-(-rings.bytes // 2**20)}m" if rings.bytes > SHM_DEFAULT else ""
    yield "memory", size_text(rings.bytes) + remedy
    if plan.nic:
        where = (
            "pinned host memory"
            if plan.nic.memory == "host"
            else "GPU memory, or pinned host memory where NIC or GPU cannot"
        )
        yield "gate", f"{shown(plan.nic.gate_host, plan.nic.gate_port)}, {plan.nic.device} at {where}"


def rates(plan: Plan) -> str:
    """What floors are computed from."""
    target = plan.target
    rates = f"{target.count * target.read_bandwidth / 1e9:,.0f} GB/s, {target.count * target.flops / 1e12:,.3g} TFLOP/s"
    return f"{rates} ({target.source}{'; nothing was probed' if target.source == 'nominal' else ''})"


def _recall_title(plan: Plan) -> str:
    return f"slow lane, the least times with {plan.target.link_bandwidth / 1e9:,.3g} GB/s from host memory"


def _recall(plan: Plan) -> str:
    size = plan.attention.page_size
    rows = [
        (
            str(pace.rows),
            f"{pace.context:,}",
            f"{pace.blocks:,}",
            f"{min(pace.blocks * size / pace.context, 1):.0%}",
            size_text(pace.row_bytes),
            time_text(pace.link_seconds),
            time_text(pace.step_seconds),
            f"{pace.least_hits:.0%}",
            rate_text(pace.rows / max(pace.link_seconds, pace.step_seconds)),
            rate_text(pace.tokens_per_second),
        )
        for pace in plan.recall
    ]
    heading = ("rows", "context", "blocks", "of it", "recall a token", "of all rows", "step", "hits needed")
    return table((*heading, "tokens/s without hits", "with"), rows)


def _cooperation_title(plan: Plan) -> str:
    link, count = plan.target.link_bandwidth / 1e9, plan.target.count
    rates = (
        f"{link * count:,.3g} GB/s from host memory, {DRAM / 1e9:.3g} in it, {WORKER / 1e9:.3g} of attention a worker"
    )
    return f"slow lane, the least times with {rates}"


def _cooperation(plan: Plan) -> str:
    rows = [
        (
            str(pace.rows),
            f"{pace.context:,}",
            str(pace.workers),
            f"{pace.attended:.0%}",
            time_text(pace.host_seconds),
            time_text(pace.step_seconds),
            rate_text(pace.tokens_per_second),
        )
        for pace in plan.cooperation
    ]
    return table(("rows", "context", "workers", "by them", "KV of all rows", "step", "tokens/s"), rows)


def _floors(plan: Plan) -> str:
    return table(
        ("rows", "context", "TPOT", "bound by", "TTFT", "bound by", "tokens/s", "route"),
        [
            (
                str(floor.rows),
                f"{floor.context:,}",
                time_text(floor.seconds),
                floor.bound,
                time_text(floor.ttft_seconds),
                floor.ttft_bound,
                rate_text(floor.tokens_per_second),
                floor.route,
            )
            for floor in plan.floors
        ],
    )


def _forecast_title(forecast: Forecast) -> str:
    return f"forecast, an estimate from {forecast.basis}" if forecast.cells else f"no forecast: {forecast.basis}"


def _forecast(plan: Plan) -> str:
    rows = [
        (
            str(cell.rows),
            f"{cell.context:,}",
            time_text(cell.seconds),
            cell.bound,
            time_text(cell.ttft_seconds),
            cell.ttft_bound,
            rate_text(cell.tokens_per_second),
            f"{cell.seconds / floor.seconds:.2f}",
        )
        for cell, floor in zip(plan.forecast.cells, plan.floors, strict=False)
    ]
    heading = ("rows", "context", "TPOT", "mostly", "TTFT", "mostly", "tokens/s", "TPOT / floor")
    return table(heading, rows) if rows else ""
