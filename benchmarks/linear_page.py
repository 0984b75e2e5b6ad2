"""The figures in docs/products.md, and those that the plan's forecast has, from benchmarks/results/gpu_linear.json.

`python -m benchmarks.linear_page` writes them again; nothing else does.
"""

import json
from typing import Any

from benchmarks.pages import ROOT, Table, filled, markdown, result

PAGE = ROOT / "docs/products.md"
KNOWN = ROOT / "dualpace/plan/products/h200.json"


def table(report: dict[str, Any]) -> str:
    """A line a weight and one for the layer, in Markdown: the floor, and ours / cuBLAS's by rows, in microseconds."""
    products, layers = report["products"], report["layers"]
    rows = [layer["rows"] for layer in layers]
    head = ("product", "floor", *(f"{n} row{'s' if n > 1 else ''}" for n in rows))
    weights = dict.fromkeys(product["weight"] for product in products)
    lines = [_line(weight, [product for product in products if product["weight"] == weight]) for weight in weights]
    return markdown(head, [*lines, _line("a layer", layers)])


def _line(name: str, results: list[dict[str, Any]]) -> tuple[str, ...]:
    cells = (f"{_us(result['own_s'])} / {_us(result['cublas_s'])}" for result in results)
    return (name, _us(results[0]["floor_s"]), *cells)


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}"


def library_table(report: dict[str, Any]) -> str:
    """A line a number of rows, in Markdown: cuBLAS's by weight, likewise."""
    head = ("rows, by cuBLAS", *dict.fromkeys(product["weight"] for product in report["library"]))
    cells = {(product["rows"], product["weight"]): _us(product["cublas_s"]) for product in report["library"]}
    rows = sorted({rows for rows, _ in cells})
    return markdown(head, [(f"{n:,}", *(cells.get((n, weight), "") for weight in head[1:])) for n in rows])


def products(report: dict[str, Any]) -> str:
    """The file of the plan's: those of step programs, ours and then cuBLAS's, by elements of their weight and rows."""
    found = [
        {"elements": each["weight_bytes"] // 2, "rows": each["rows"], "seconds": each[seconds]}
        for part, seconds in (("products", "own_s"), ("library", "cublas_s"))
        for each in report[part]
    ]
    return json.dumps(found, indent=1) + "\n"


TABLES = (Table("product", "gpu_linear", table), Table("rows, by cuBLAS", "gpu_linear", library_table))


def page(text: str) -> str:
    """The page `text` with the figures of the result file."""
    return filled(text, TABLES)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    KNOWN.write_text(products(result("gpu_linear")), encoding="utf-8")
