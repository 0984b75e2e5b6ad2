"""The page at `/`: the deployment at a glance, and a box to try a prompt.

What lives on it comes from `/metrics`, which its script reads; what the plan fixes is written into it once. It asks
nobody else for anything, and is told so by its content security policy.
"""

import hashlib
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from dualpace import __version__
from dualpace.appliance.deployment import Deployment
from dualpace.appliance.tally import CACHED_TOKENS, FINISHED, GENERATED_TOKENS, PROMPT_TOKENS, REJECTED
from dualpace.plan.bar import memory_parts
from dualpace.plan.plan import Plan
from dualpace.plan.quantity import rate_text, size_text, time_text
from dualpace.plan.report import hardware, model_facts, program_facts, rates

ASSETS = Path(__file__).with_name("assets")
SCRIPTS = ("metrics.js", "chart.js", "prompt.js", "page.js")
MARK = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" aria-hidden="true">'
    '<path d="M7 4h16l-3 7H4z" fill="#5b69f5"/><path d="M4.500 14h9l-3 7h-9z" fill="#d98a1d"/></svg>'
)
EXAMPLE = "Once upon a time, a little robot"


class Page(NamedTuple):
    """The document, and the policy that it is sent with."""

    html: str
    policy: str


class Line(NamedTuple):
    """A line of a chart; `look` "bound" is a height that is drawn across it."""

    name: str
    look: str
    filled: bool = False


class ChartCard(NamedTuple):
    """A chart; `id` says to the script what it shows."""

    id: str
    title: str
    unit: str
    lines: tuple[Line, ...]


_CHARTS = (
    ChartCard("throughput", "Throughput", "tokens/s", (Line("generated", "fast", True), Line("prompts", "slow"))),
    ChartCard("ttft", "TTFT", "", (Line("p50", "fast", True), Line("p95", "slow"))),
    ChartCard("tpot", "TPOT", "", (Line("mean", "fast", True), Line("ITL p95", "slow"), Line("floor", "bound"))),
    ChartCard("batch", "Batch", "rows", (Line("running", "fast", True), Line("most", "bound"))),
    ChartCard("queue", "Queue", "requests", (Line("waiting", "slow", True),)),
    ChartCard("kv", "KV", "%", (Line("held", "fast", True), Line("with cached", "slow"))),
)


class Total(NamedTuple):
    """A row of totals: one metric, or several joined by "+"."""

    name: str
    metric: str


def _by_value(name: str, label: str, values: Iterable[str]) -> str:
    return "+".join(f"{name}|{label}={value}" for value in values)


_TOTALS = (
    Total("Generated tokens", GENERATED_TOKENS.name),
    Total("Prompt tokens", PROMPT_TOKENS.name),
    Total("of these cached", CACHED_TOKENS.name),
    Total("Finished by a stop", _by_value(FINISHED.name, "finish_reason", ["stop"])),
    Total("Finished by length", _by_value(FINISHED.name, "finish_reason", ["length"])),
    Total("Left by their clients", _by_value(FINISHED.name, "finish_reason", ["abort"])),
    Total("Failed", _by_value(FINISHED.name, "finish_reason", ["error"])),
    Total("Refused", _by_value(REJECTED.name, "status", REJECTED.values)),
    Total("Preemptions", "dualpace_preemptions_total"),
    Total("Non-finite logits", "dualpace_nonfinite_logits_total"),
    Total("Steps", "dualpace_steps_total"),
)
_OFFLOAD_TOTALS = (
    Total("of these slow", "dualpace_slow_steps_total"),
    Total("Slow rows now", "dualpace_slow_rows"),
    Total("Host pages held now", "dualpace_host_pages|state=held"),
    Total("Blocks found on the card", "dualpace_recall_blocks_total|found=card"),
    Total("Blocks recalled", "dualpace_recall_blocks_total|found=host"),
    Total("Waits for the link", "dualpace_link_waits_total"),
)


def render_page(deployment: Deployment) -> Page:
    """The page of one deployment."""
    plan, generation = deployment.plan, deployment.generation
    style = (ASSETS / "page.css").read_text(encoding="utf-8")
    script = "".join((ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS)
    about = {
        "model": deployment.name,
        "chat": deployment.chat.exists,
        "text": deployment.tokenizer is not None,
        # None where no context that floors are told for fits the card.
        "floor": min((floor.seconds for floor in plan.floors), default=None),
        "charts": [
            {"id": card.id, "lines": [line._asdict() for line in card.lines if line.look != "bound"]}
            for card in _CHARTS
        ],
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ASSETS), autoescape=True, undefined=jinja2.StrictUndefined
    )
    html = environment.get_template("page.html.j2").render(
        name=deployment.name,
        fingerprint=deployment.fingerprint,
        version=__version__,
        mark=Markup(MARK),
        icon=f"data:image/svg+xml,{quote(MARK)}",
        style=Markup(style),
        script=Markup(script),
        about=jinja2.utils.htmlsafe_json_dumps(about),
        charts=_CHARTS,
        totals=_TOTALS + (_OFFLOAD_TOTALS if plan.offload.mode != "off" else ()),
        chips=_chips(plan),
        link=_link(plan),
        chat=about["chat"],
        text=about["text"],
        example=EXAMPLE if about["text"] else "5 6 7",
        temperature=f"{generation.temperature:g}",
        max_context=deployment.max_context,
        memory=_memory(plan),
        facts=_facts(plan),
        floors=_floors(plan),
        rates=rates(plan),
    )
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(html, policy)


def _hash(text: str) -> str:
    return "sha256-" + b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _chips(plan: Plan) -> list[str]:
    count = plan.parameters
    parameters = f"{count / 1e9:.3g} B" if count >= 1e9 else f"{count / 1e6:.3g} M"
    return [
        plan.model.family,
        f"{parameters} parameters",
        plan.model.dtype,
        hardware(plan),
        f"context {plan.schedule.max_context:,}",
    ]


def _link(plan: Plan) -> str:
    if plan.offload.mode != "off":
        pages = f"{plan.offload.host_pages:,} pages of KV in host memory"
        return f"{plan.schedule.slow_rows} rows may have most of their KV elsewhere: {pages}, recalled layer by layer."
    if plan.target.kind == "cpu":
        return "All KV is in host memory, where it is used: nothing has to be moved."
    return "Offload is off: all KV stays on the device, and nothing crosses to host memory."


def _memory(plan: Plan) -> list[dict[str, Any]]:
    return [
        {"name": part.name, "size": size_text(part.bytes), "share": part.bytes / plan.target.memory}
        for part in memory_parts(plan.memory, plan.target.memory)
    ]


def _facts(plan: Plan) -> list[tuple[str, Iterable[tuple[str, ...]]]]:
    # A row without a name goes on with the weights: their place on the hub is told, that on this machine is not.
    told = [(name or "from", text) for name, text in model_facts(plan) if name or plan.weights.hub]
    attention = plan.attention
    pages = [
        ("page", f"{attention.page_size} tokens"),
        *((pool.group, f"{pool.pages:,} pages of {size_text(pool.page_bytes)}") for pool in plan.pages),
        ("route", attention.route if plan.target.kind == "cuda" else "host"),
        ("rings", f"{plan.rings.rings} x {plan.rings.transport}, {size_text(plan.rings.bytes)}"),
    ]
    return [("Model", told), ("Steps", program_facts(plan)), ("Pages and rings", pages)]


def _floors(plan: Plan) -> list[tuple[str, ...]]:
    return [
        (
            f"{floor.rows}", f"{floor.context:,}", time_text(floor.seconds), floor.bound,
            time_text(floor.ttft_seconds), floor.ttft_bound, rate_text(floor.tokens_per_second),
        )
        for floor in plan.floors
    ]  # fmt: skip
