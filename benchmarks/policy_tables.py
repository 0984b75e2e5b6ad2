"""Tables of what attention's policy chooses, in Markdown, for benchmarks.attention_page."""

import statistics
from typing import Any

from benchmarks.pages import markdown

CHOICES = ("chosen in a step", "by the device", "microseconds", "fastest single route", "microseconds", "slower")
LAYERS = (
    "calibrated layer", "fitted to", "slower than the fastest", "at most", "FlashInfer's kernel saves", "start, us",
    "a merged result, ns",
)  # fmt: skip
PROTOCOL = ("traces", "rows", "with planning", "without", "routes", "launches a step", "FlashInfer's")


def choices(report: dict[str, Any]) -> str:
    """A line a trace: what the device chose, and the fastest of the single routes and split sizes."""
    (first, *_) = report["results"].values()
    return markdown(CHOICES, [_choice(trace, figures) for trace, figures in first["traces"].items()])


def _choice(trace: str, figures: dict[str, Any]) -> tuple[str, ...]:
    single = figures["single_s"]
    best = min(single, key=lambda route: single[route])
    chosen = f"split {figures['split_tokens']}" if figures["split_tokens"] else figures["route"]
    return trace, chosen, _us(figures["auto_s"]), best, _us(single[best]), f"{figures['auto_s'] / single[best] - 1:.1%}"


def layers(report: dict[str, Any]) -> str:
    """A line a layer: how well its constants fit, and what choosing by them loses."""
    return markdown(LAYERS, [_layer(figures) for figures in report["results"].values()])


def _layer(figures: dict[str, Any]) -> tuple[str, ...]:
    layer, lost = figures["layer"], figures["lost"]
    return (
        f"{8 * layer['gqa_ratio']}/8 heads of {layer['head_dim']}",
        f"{figures['fit_error']['own']:.1%}",
        f"{lost['mean']:.2%}",
        f"{lost['most']:.1%}",
        f"{layer['flashinfer_gain']:.1%}",
        _us(layer["own"]["start"]),
        f"{layer['own']['merge'] * 1e9:.0f}",
    )


def protocol(report: dict[str, Any]) -> str:
    """A line a family of traces and number of rows: throughput over FlashInfer's, mean and range over the seeds."""
    lines: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for result in report["results"]:
        lines.setdefault((result["family"], result["rows"]), []).append(result)
    return markdown(PROTOCOL, [_family(*key, results) for key, results in lines.items()])


def _family(family: str, rows: int, results: list[dict[str, Any]]) -> tuple[str, ...]:
    def spread(name: str) -> str:
        ratios = [result[name] for result in results]
        return f"{statistics.mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"

    def launches(name: str) -> str:
        counts = sorted({round(result[name]) for result in results})
        return " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))

    routes = ", ".join(sorted({result["route"] for result in results}))
    ratios = spread("with_planning"), spread("without_planning")
    return family, str(rows), *ratios, routes, launches("launches"), launches("flashinfer_launches")


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}"
