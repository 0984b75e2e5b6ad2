"""`/metrics`: what engine and frontends count, as Prometheus text, and again under the names that vLLM has for it."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dualpace import __version__
from dualpace.appliance.deployment import Deployment
from dualpace.appliance.tally import (
    CACHED_TOKENS,
    DECODE,
    DURATION,
    FAMILIES,
    FINISHED,
    GENERATED_LENGTH,
    GENERATED_TOKENS,
    ITL,
    PROMPT_LENGTH,
    PROMPT_TOKENS,
    TPOT,
    TTFT,
    Counter,
    Family,
    Histogram,
)
from dualpace.engine.ring import Status
from dualpace.engine.traffic import FAILURES, FAULTS, Traffic

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Samples(NamedTuple):
    """A family: `kind` is gauge, counter or histogram; each value has a suffix of the name and a label, as written."""

    name: str
    kind: str
    help: str
    values: tuple[tuple[str, str, float], ...]


class EngineCounter(NamedTuple):
    """A counter made of fields of Status, one for each value of a label; without a label, of one field."""

    name: str
    help: str
    fields: tuple[str, ...]
    label: str = ""
    values: tuple[str, ...] = ("",)


_HOW = ("finished", "aborted", "failed")
_ROUTES = ("split", "workqueue", "flashinfer", "host")

ENGINE_COUNTERS = (
    EngineCounter("dualpace_steps_total", "Forward passes.", ("steps",)),
    EngineCounter("dualpace_accepted_requests_total", "Requests that the engine took from the rings.", ("accepted",)),
    EngineCounter("dualpace_ended_requests_total", "Requests that left the engine, by how.", _HOW, "how", _HOW),
    EngineCounter(
        "dualpace_prefilled_tokens_total", "Prompts' and recomputed rows' tokens run through the model.", ("prefilled",)
    ),
    EngineCounter("dualpace_sampled_tokens_total", "Tokens that the engine sampled.", ("generated",)),
    EngineCounter(
        "dualpace_reused_tokens_total", "Tokens whose KV an admitted request found, readmitted ones too.", ("reused",)
    ),
    EngineCounter("dualpace_preemptions_total", "Rows that gave up their pages, to be recomputed.", ("preempted",)),
    EngineCounter("dualpace_page_waits_total", "Steps in which a request waited for pages.", ("exhausted",)),
    EngineCounter("dualpace_evicted_pages_total", "Cached pages given to others.", ("evicted",)),
    EngineCounter(
        "dualpace_nonfinite_logits_total", "Sampled rows with a logit that was NaN or infinite.", ("nonfinite",)
    ),
    EngineCounter("dualpace_malformed_records_total", "Ring records that the engine refused.", ("malformed",)),
    EngineCounter("dualpace_ring_epochs_total", "Claims and ends of claims of rings.", ("epochs",)),
    EngineCounter(
        "dualpace_attention_steps_total",
        "Layer groups in steps, by the route that decode attention took.",
        tuple(f"{route}_steps" for route in _ROUTES),
        "route",
        _ROUTES,
    ),
    EngineCounter(
        "dualpace_attention_bytes_total",
        "Bytes that decode attention moved in all layers: KV read, partial results written and read again.",
        ("attention_bytes", "attention_merge_bytes"),
        "of",
        ("kv", "partials"),
    ),
    EngineCounter("dualpace_attention_tasks_total", "Tasks of decode attention, in all layers.", ("attention_items",)),
    EngineCounter(
        "dualpace_attention_launches_total",
        "Decode attention's kernels that worked, in all layers.",
        ("attention_launches",),
    ),
)

# Of deployments with KV in host memory.
OFFLOAD_COUNTERS = (
    EngineCounter("dualpace_slow_steps_total", "Forward passes of rows with KV in host memory.", ("slow_steps",)),
    EngineCounter(
        "dualpace_recall_blocks_total",
        "Blocks that a layer's tokens chose, by whether they were on the card or had to be brought there.",
        ("recall_hits", "recall_misses"),
        "found",
        ("card", "host"),
    ),
    EngineCounter(
        "dualpace_link_bytes_total",
        "Bytes of KV blocks that were recalled from host memory, and that left for it.",
        ("recalled_bytes", "sent_bytes"),
        "way",
        ("recall", "leave"),
    ),
    EngineCounter(
        "dualpace_link_waits_total", "Steps in which a request waited for the link to host memory.", ("link_waits",)
    ),
)

# What vLLM's names stand for. It counts look-ups in the prefix cache apart; here a prompt is looked up once, whole.
# It also has the times that requests queue and prefill, and tokens by step, which no frontend sees.
_ALIASES = {
    "vllm:num_requests_running": "dualpace_requests_running",
    "vllm:num_requests_waiting": "dualpace_requests_waiting",
    "vllm:kv_cache_usage_perc": "dualpace_kv_usage_ratio",
    "vllm:num_preemptions_total": "dualpace_preemptions_total",
    "vllm:corrupted_requests_total": "dualpace_nonfinite_logits_total",
    "vllm:prompt_tokens_total": PROMPT_TOKENS.name,
    "vllm:prompt_tokens_cached_total": CACHED_TOKENS.name,
    "vllm:prefix_cache_queries_total": PROMPT_TOKENS.name,
    "vllm:prefix_cache_hits_total": CACHED_TOKENS.name,
    "vllm:generation_tokens_total": GENERATED_TOKENS.name,
    "vllm:time_to_first_token_seconds": TTFT.name,
    "vllm:inter_token_latency_seconds": ITL.name,
    "vllm:request_time_per_output_token_seconds": TPOT.name,
    "vllm:e2e_request_latency_seconds": DURATION.name,
    "vllm:request_decode_time_seconds": DECODE.name,
    "vllm:request_prompt_tokens": PROMPT_LENGTH.name,
    "vllm:request_generation_tokens": GENERATED_LENGTH.name,
    # Older names, which many dashboards still have.
    "vllm:gpu_cache_usage_perc": "dualpace_kv_usage_ratio",
    "vllm:time_per_output_token_seconds": ITL.name,
}


def metrics_text(
    deployment: Deployment,
    status: Status,
    ready: bool,
    totals: dict[str, list[float]],
    traffic: Traffic | None = None,
) -> str:
    """All metrics; `totals` are those of the frontends' Tally, `traffic` is this frontend's alone."""
    samples = [*_engine(deployment, status, ready), *(_frontend(family, totals[family.name]) for family in FAMILIES)]
    samples += _transport(traffic) if traffic else ()
    model = _quoted(deployment.name)
    own = [_written(one, f"model_name={model}") for one in samples]
    others = [_written(one, f'model_name={model},engine="0"') for one in _vllm(samples, totals)]
    return "".join((*own, *others))


def _engine(deployment: Deployment, status: Status, ready: bool) -> Iterator[Samples]:
    plan = deployment.plan
    held = status.total_pages - status.free_pages
    info = {"version": __version__, "bundle": deployment.fingerprint, "target": plan.target.name}
    labels = ",".join(f"{name}={_quoted(value)}" for name, value in info.items())
    yield Samples("dualpace_info", "gauge", "What serves.", (("", labels, 1),))
    yield _gauge("dualpace_start_time_seconds", "When the frontend started, since the epoch.", deployment.created)
    yield _gauge("dualpace_ready", "Whether a request would be taken now.", ready)
    yield _gauge("dualpace_requests_running", "Rows of the batch.", status.running)
    yield _gauge("dualpace_requests_waiting", "Requests that wait for a row.", status.waiting)
    yield _gauge("dualpace_waiting_tokens", "Tokens of the prompts that wait.", status.waiting_tokens)
    yield _gauge("dualpace_batch_rows_limit", "Most rows of a batch.", plan.schedule.max_batch)
    yield _gauge("dualpace_context_tokens_limit", "Longest prompt and completion together.", deployment.max_context)
    yield _gauge(
        "dualpace_kv_usage_ratio", "Pages that rows hold, of all, in the scarcest layer group: 1 is full.",
        held / max(1, status.total_pages),
    )  # fmt: skip
    pages = {"held": held, "cached": status.cached_pages, "free": status.free_pages - status.cached_pages}
    yield Samples(
        "dualpace_kv_pages", "gauge", "Pages of the scarcest layer group: held by rows, cached for prompts, free.",
        tuple(("", _label("state", state), count) for state, count in pages.items()),
    )  # fmt: skip
    offload = plan.offload.mode != "off"
    if offload:
        yield from _offload(status)
    for name, text, fields, label, values in ENGINE_COUNTERS + (OFFLOAD_COUNTERS if offload else ()):
        counts = tuple(
            ("", _label(label, value), getattr(status, field)) for field, value in zip(fields, values, strict=True)
        )
        yield Samples(name, "counter", text, counts)


def _offload(status: Status) -> Iterator[Samples]:
    yield _gauge("dualpace_slow_rows", "Rows of the batch with KV in host memory.", status.slow_rows)
    pages = {"held": status.host_pages, "free": status.total_host_pages - status.host_pages}
    yield Samples(
        "dualpace_host_pages", "gauge", "Pages of the host pool: those that rows have or are promised, and free.",
        tuple(("", _label("state", state), count) for state, count in pages.items()),
    )  # fmt: skip
    for name, text, spent in (
        ("dualpace_slow_step_seconds_total", "Time that slow steps took.", status.slow_step_ns),
        ("dualpace_recall_stall_seconds_total", "Of this, time that they waited for blocks.", status.recall_stall_ns),
    ):
        yield Samples(name, "counter", text, (("", "", spent / 1e9),))


def _transport(traffic: Traffic) -> Iterator[Samples]:
    kinds = ("write", "read")
    for name, text, counts in (
        ("dualpace_rdma_operations_total", "RDMA operations posted.", (traffic.writes, traffic.reads)),
        ("dualpace_rdma_bytes_total", "Bytes that they carry.", (traffic.written_bytes, traffic.read_bytes)),
    ):
        values = tuple(("", _label("kind", kind), count) for kind, count in zip(kinds, counts, strict=True))
        yield Samples(name, "counter", text, values)
    yield Samples("dualpace_rdma_doorbells_total", "counter", "Chains of them posted.", (("", "", traffic.doorbells),))
    for name, text, count in (
        ("dualpace_rdma_attempts_total", "Times that the engine was asked to let this frontend in.", traffic.attempts),
        ("dualpace_rdma_connections_total", "Connections made to the engine.", traffic.connections),
    ):
        yield Samples(name, "counter", text, (("", "", count),))
    for name, text, label, whys, found in (
        ("dualpace_rdma_failures_total", "Attempts that failed, by why.", "cause", FAILURES, traffic.failures),
        ("dualpace_rdma_faults_total", "Connections lost, by why.", "fault", FAULTS, traffic.faults),
    ):
        yield Samples(name, "counter", text, tuple(("", _label(label, why), found[why]) for why in whys))


def _gauge(name: str, text: str, value: float) -> Samples:
    return Samples(name, "gauge", text, (("", "", value),))


def _frontend(family: Family, cells: list[float]) -> Samples:
    if isinstance(family, Histogram):
        *counts, total = cells
        below, values = 0.0, []
        for bound, count in zip((*family.bounds, "+Inf"), counts, strict=True):
            below += count
            values.append(("_bucket", _label("le", str(bound)), below))
        values += [("_sum", "", total), ("_count", "", below)]
        return Samples(family.name, "histogram", family.help, tuple(values))
    return Samples(family.name, "counter", family.help, _by_value(family, family.label, cells))


def _by_value(counter: Counter, label: str, cells: list[float]) -> tuple[tuple[str, str, float], ...]:
    return tuple(("", _label(label, value), count) for value, count in zip(counter.values, cells, strict=True))


def _vllm(samples: Iterable[Samples], totals: dict[str, list[float]]) -> Iterator[Samples]:
    by_name = {one.name: one for one in samples}
    for alias, name in _ALIASES.items():
        yield by_name[name]._replace(name=alias, help=f"As {name}.")
    reasons = _by_value(FINISHED, "finished_reason", totals[FINISHED.name])
    yield Samples("vllm:request_success_total", "counter", f"As {FINISHED.name}.", reasons)


def _written(samples: Samples, labels: str) -> str:
    name = samples.name
    lines = [f"# HELP {name} {samples.help}\n# TYPE {name} {samples.kind}\n"]
    for suffix, label, value in samples.values:
        lines.append(f"{name}{suffix}{{{labels}{',' if label else ''}{label}}} {_number(value)}\n")
    return "".join(lines)


def _label(name: str, value: str) -> str:
    return f'{name}="{value}"' if name else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
