"""Line plots as SVG text: no scripts, no assets; colours and type come from the page's style sheet."""

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 460, 250
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 14, 40
TICKS = 5
# Of a picture: the room above, more for each further row of names; names in a row, their distance, where they begin.
HEAD, ROW, KEYS, KEY, LEFT_OF_KEYS = 24, 16, 2, 150, 120
# Values further apart than this share a logarithmic axis.
LOGARITHMIC = 12.0

# Colours of a light page and of a dark one, and how the parts of a plot look.
COLOURS = (
    "--card: #ffffff; --ink: #15161a; --soft: #5c5f66; --line: #e4e4de; --axis: #b9bab3; "
    "--c1: #2a6fdb; --c2: #0f9b76; --c3: #b86e00; --c4: #cf3b4a;"
)
DARK = (
    "--card: #1b1d21; --ink: #eceded; --soft: #9da1a8; --line: #2b2e34; --axis: #4b4f57; "
    "--c1: #6ea5f7; --c2: #3fc49d; --c3: #e6a545; --c4: #f2777f;"
)
STYLE = "\n".join(
    (
        "svg text { fill: var(--soft); font: 11px ui-sans-serif, system-ui, sans-serif; }",
        "svg text { font-variant-numeric: tabular-nums; }",
        ".grid { stroke: var(--line); } .axis { stroke: var(--axis); }",
        ".line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }",
        ".band { opacity: .16; stroke: none; }",
        ".hit { fill: transparent; stroke: none; }",
        ".dot circle:not(.hit) { stroke: var(--card); stroke-width: 2; }",
        ".dot:hover circle:not(.hit) { stroke: var(--ink); }",
        *(
            f".line.c{n} {{ stroke: var(--c{n}); }} .band.c{n}, .dot.c{n} circle:not(.hit) {{ fill: var(--c{n}); }}"
            for n in range(1, 5)
        ),
    )
)

Point = tuple[float, float]
Scale = Callable[[float], float]


class Line(NamedTuple):
    """A line of one colour, `colour` being its number in the style sheet.

    `points` without a value leave a gap. `band`: (x, low, high) around it. `marks`: points with a label each.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    colour: int = 1
    band: Sequence[tuple[float, float, float]] = ()
    marks: Sequence[tuple[float, float, str]] = ()


def plot(lines: Sequence[Line], x_name: str, y_name: str, *, log_x: bool = False, most_y: float | None = None) -> str:
    """The lines over common axes, the vertical one from zero. Every mark tells its label under the pointer."""
    xs = [x for line in lines for x, y in line.points if y is not None]
    ys = [y for line in lines for _, y in line.points if y is not None]
    ys += [high for line in lines for _, _, high in line.band]
    if not xs:
        return ""
    low, high = min(xs), max(xs)
    logarithmic = log_x and low > 0 and high / low > LOGARITHMIC
    ticks_x = _decades(low, high) if logarithmic else _steps(0.0 if low >= 0 and not log_x else low, high)
    low, high = min(low, ticks_x[0]), max(high, ticks_x[-1])
    ticks_y = _steps(0.0, most_y or max(ys))
    top = max(ticks_y[-1], most_y or max(ys)) or 1.0
    x = _scale(low, high, LEFT, WIDTH - RIGHT, logarithmic)
    y = _scale(0.0, top, HEIGHT - BOTTOM, TOP, False)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(y_name)} by {escape(x_name)}">']
    for value in ticks_y:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 7}" y="{y(value) + 3.5:.1f}" text-anchor="end">{number(value)}</text>'
        )
    for value in ticks_x:
        parts.append(f'<text class="tick" x="{x(value):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
                     f"{number(value)}</text>")  # fmt: skip
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(0):.1f}" y2="{y(0):.1f}"/>')
    parts.append(f'<text class="name" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">'
                 f"{escape(x_name)}</text>")  # fmt: skip
    for line in lines:
        parts += _line(line, x, y)
    return "\n".join([*parts, "</svg>"])


def picture(lines: Sequence[Line], x_name: str, y_name: str) -> str:
    """A file of a plot by itself, light or dark as its reader's page is, with the names above."""
    above = HEAD + ROW * (math.ceil(len(lines) / KEYS) - 1)
    keys = "".join(
        f'<text x="{KEY * (i % KEYS) + LEFT_OF_KEYS}" y="{16 - above + ROW * (i // KEYS)}">'
        f'<tspan class="key c{line.colour}">\u25cf</tspan> {escape(line.name)}</text>'
        for i, line in enumerate(lines)
    )
    style = (f":root {{ {COLOURS} }} @media (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}\n{STYLE}\n"
             + "".join(f".key.c{line.colour} {{ fill: var(--c{line.colour}); }}\n" for line in lines))  # fmt: skip
    frame = f'viewBox="0 -{above} {WIDTH} {HEIGHT + above}"'
    head, _, rest = plot(lines, x_name, y_name).removesuffix("</svg>").partition(">")
    head = head.replace(f'viewBox="0 0 {WIDTH} {HEIGHT}"', f'xmlns="http://www.w3.org/2000/svg" {frame}')
    return f'{head}><style>{style}</style>{rest}<text x="8" y="{16 - above}">{escape(y_name)}</text>{keys}</svg>\n'


def _line(line: Line, x: Scale, y: Scale) -> list[str]:
    parts = []
    if len(line.band) > 1:
        edge = [f"{x(at):.1f},{y(high):.1f}" for at, _, high in line.band]
        edge += [f"{x(at):.1f},{y(low):.1f}" for at, low, _ in reversed(line.band)]
        parts.append(f'<polygon class="band c{line.colour}" points="{" ".join(edge)}"/>')
    for piece in _pieces(line.points):
        path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in piece)
        if len(piece) > 1:
            parts.append(f'<polyline class="line c{line.colour}" points="{path}"/>')
        else:
            parts.append(_dot(piece[0], line, x, y, f"{line.name} {number(piece[0][1])}"))
    parts += [_dot((at, value), line, x, y, label) for at, value, label in line.marks]
    return parts


def _dot(point: Point, line: Line, x: Scale, y: Scale, label: str) -> str:
    place = f'cx="{x(point[0]):.1f}" cy="{y(point[1]):.1f}"'
    return (f'<g class="dot c{line.colour}"><circle class="hit" {place} r="11"/><circle {place} r="4"/>'
            f"<title>{escape(label)}</title></g>")  # fmt: skip


def _pieces(points: Sequence[tuple[float, float | None]]) -> list[list[Point]]:
    """The points between gaps."""
    pieces: list[list[Point]] = [[]]
    for x, y in points:
        if y is None:
            pieces.append([])
        else:
            pieces[-1].append((x, y))
    return [piece for piece in pieces if piece]


def _scale(low: float, high: float, begin: float, end: float, logarithmic: bool) -> Scale:
    if logarithmic:
        reach = math.log(high / low)
        return lambda value: begin + (end - begin) * math.log(max(value, low) / low) / reach
    reach = high - low or 1.0
    return lambda value: begin + (end - begin) * (value - low) / reach


def _steps(low: float, high: float) -> list[float]:
    """Round values from at most `low` to at least `high`, 1, 2 or 5 times a power of ten apart."""
    rough = (high - low) / TICKS or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, max(last, first + 1) + 1)]


def _decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten from at most `low` to at least `high`; fewer where there are many."""
    factors = (1, 2, 5) if high / low < 200 else (1, 3) if high / low < 3000 else (1,)
    found = [f * 10.0**p for p in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) for f in factors]
    first = max((i for i, value in enumerate(found) if value <= low), default=0)
    last = min((i for i, value in enumerate(found) if value >= high), default=len(found) - 1)
    return found[first : last + 1]


def digits(value: float) -> str:
    """Three digits that matter, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".") if value else "0"


def number(value: float) -> str:
    """The same, as short as can be: 20k for 20,000."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.3g}k"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
