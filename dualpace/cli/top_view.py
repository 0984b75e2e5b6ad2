"""What `top` draws: a panel for each thing that is watched, with its last minutes as a line of bars, and totals."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dualpace.plan.quantity import rate_text, time_text
from dualpace.scrape import Looks

BARS, ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-=+*%#"
# What rates and times are taken over, in seconds, as the page at `/` has it.
RATE_S, TIMES_S = 2.0, 20.0
PANEL_COLUMNS = 34
_TTFT, _ITL = "dualpace_time_to_first_token_seconds", "dualpace_inter_token_latency_seconds"
_TOTALS = {
    "generated": "dualpace_generated_tokens_total",
    "prompts": "dualpace_prompt_tokens_total",
    "cached": "dualpace_cached_tokens_total",
    "stop": "dualpace_choices_total|finish_reason=stop",
    "length": "dualpace_choices_total|finish_reason=length",
    "left": "dualpace_choices_total|finish_reason=abort",
    "failed": "dualpace_choices_total|finish_reason=error",
    "preempted": "dualpace_preemptions_total",
    "non-finite": "dualpace_nonfinite_logits_total",
    "steps": "dualpace_steps_total",
}


class Gauge(NamedTuple):
    """Something watched: its `value` (None: there is none now), in words, and of how much `most`; 0: as it comes."""

    title: str
    value: float | None
    text: str
    beside: str
    most: float = 0.0


def gauges(looks: Looks) -> Iterator[Gauge]:
    """All that is watched, as it is now."""
    generated, prompts = (looks.rate(f"dualpace_{of}_tokens_total", RATE_S) for of in ("generated", "prompt"))
    yield Gauge("Throughput", generated, f"{_rate(generated)} tokens/s", f"prompts {_rate(prompts)}")
    p50, p95 = (looks.quantile(_TTFT, share, TIMES_S) for share in (0.5, 0.95))
    yield Gauge("TTFT", p50, _time(p50), f"p95 {_time(p95)}")
    mean, late = looks.mean(_ITL, RATE_S), looks.quantile(_ITL, 0.95, TIMES_S)
    yield Gauge("TPOT", mean, _time(mean), f"ITL p95 {_time(late)}")
    running, most = looks.value("dualpace_requests_running"), looks.value("dualpace_batch_rows_limit")
    yield Gauge("Batch", running, f"{running:,.0f} rows", f"of {most:,.0f}", most)
    waiting = looks.value("dualpace_requests_waiting")
    yield Gauge("Queue", waiting, f"{waiting:,.0f} requests", f"{looks.value('dualpace_waiting_tokens'):,.0f} tokens")
    held, cached, free = (looks.value(f"dualpace_kv_pages|state={state}") for state in ("held", "cached", "free"))
    share = 100 / max(1.0, held + cached + free)
    yield Gauge("KV", held * share, f"{held * share:.1f} %", f"{cached * share:.1f} % cached", 100.0)
    if "dualpace_slow_rows" in looks.last.values:
        yield from _slow_gauges(looks)


def _slow_gauges(looks: Looks) -> Iterator[Gauge]:
    """Of rows with KV in host memory."""
    rows = looks.value("dualpace_slow_rows")
    held, free = (looks.value(f"dualpace_host_pages|state={state}") for state in ("held", "free"))
    full = 100 * held / max(1.0, held + free)
    yield Gauge("Slow rows", rows, f"{rows:,.0f} rows", f"{full:.1f} % of host memory")
    recalled = looks.rate("dualpace_link_bytes_total|way=recall", RATE_S)
    taken, stalled = (looks.rate(f"dualpace_{of}_seconds_total", RATE_S) for of in ("slow_step", "recall_stall"))
    waits = f"stalled {stalled / taken:.0%}" if taken and stalled is not None else "stalled -"
    yield Gauge("Recall", recalled, "-" if recalled is None else f"{recalled / 1e9:.3g} GB/s", waits)


def bars(values: Sequence[float | None], width: int, glyphs: str, most: float = 0.0) -> str:
    """The last `width` values as a line; `most` is a full bar, by default the largest of them."""
    shown = list(values)[-width:]
    top = most or max((value for value in shown if value is not None), default=0.0) or 1.0
    marks = [" " if value is None else glyphs[min(len(glyphs) - 1, int(value / top * len(glyphs)))] for value in shown]
    return "".join(marks).rjust(width)


class View:
    """Draws looks one after the other, and keeps what their charts need of earlier ones."""

    def __init__(self, glyphs: str) -> None:
        self._glyphs = glyphs
        self._past: dict[str, deque[float | None]] = {}

    def of(self, looks: Looks, unavailable: str | None) -> Group:
        """A frame of the newest look; `unavailable` is why no request is taken, if none is."""
        panels = []
        for gauge in gauges(looks):
            past = self._past.setdefault(gauge.title, deque(maxlen=500))
            past.append(gauge.value)
            panels.append(_panel(gauge, past, self._glyphs))
        return Group(_head(looks, unavailable), _Flow(panels), _totals(looks))


def lost(reason: str) -> Group:
    """The frame where nothing can be seen."""
    return Group(Text("DualPace", style="bold"), Text(f"{reason}; looking on", style="red"))


class _Chart:
    """A gauge's past, as wide as there is room."""

    def __init__(self, gauge: Gauge, past: Sequence[float | None], glyphs: str) -> None:
        self._arguments = past, glyphs, gauge.most

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        past, glyphs, most = self._arguments
        yield Text(bars(past, options.max_width, glyphs, most), style="blue")


def _panel(gauge: Gauge, past: Sequence[float | None], glyphs: str) -> Panel:
    now = Text.assemble((gauge.text, "bold"), ("  " + gauge.beside, "dim"))
    return Panel(Group(now, _Chart(gauge, past, glyphs)), title=gauge.title, title_align="left", border_style="dim")


class _Flow:
    """Panels side by side, all of one width."""

    def __init__(self, panels: Sequence[Panel]) -> None:
        self._panels = panels

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = max(1, min(3, options.max_width // PANEL_COLUMNS))
        yield Columns(self._panels, width=options.max_width // columns - 1, padding=(0, 1, 0, 0))


def _head(looks: Looks, unavailable: str | None) -> Table:
    info = looks.last.info
    name = Text.assemble(("DualPace ", "bold"), info["model_name"], (f"  {info['target']}, {info['version']}", "dim"))
    since = time.time() - looks.value("dualpace_start_time_seconds")
    state = Text(f"serving for {_age(since)}", "green") if unavailable is None else Text(unavailable, "red")
    head = Table.grid(expand=True)
    head.add_column()
    head.add_column(justify="right")
    head.add_row(name, state)
    return head


def _totals(looks: Looks) -> Text:
    refused = sum(value for key, value in looks.last.values.items() if key.startswith("dualpace_rejected_requests"))
    counts = {name: looks.value(key) for name, key in _TOTALS.items()} | {"refused": refused}
    return Text("   ").join(Text.assemble((f"{name} ", "dim"), f"{count:,.0f}") for name, count in counts.items())


def _rate(rate: float | None) -> str:
    return "-" if rate is None else rate_text(rate)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else time_text(seconds)


def _age(seconds: float) -> str:
    minutes = max(0, int(seconds // 60))
    if minutes == 0:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
