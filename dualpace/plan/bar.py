"""The memory of a device as a bar of text, every part as long as it is large."""

from typing import NamedTuple

from dualpace.plan.plan import Memory, Plan
from dualpace.plan.quantity import size_text
from dualpace.plan.table import facts

BLOCKS = "█▓▒░·"
ASCII = "#=+.-"


class Part(NamedTuple):
    """A stretch of the bar, and what it consists of if it is more than one thing."""

    name: str
    bytes: int
    of: tuple[str, ...] = ()


def memory_bar(plan: Plan, width: int, glyphs: str = BLOCKS) -> str:
    """The bar, `width` characters wide with its margin, and below it what its parts are."""
    parts = memory_parts(plan.memory, plan.target.memory)
    lengths = _lengths([part.bytes for part in parts], width - 4)
    bar = "".join(glyph * length for glyph, length in zip(glyphs, lengths, strict=True))
    rows = [
        (
            f"{glyph} {part.name}",
            size_text(part.bytes).rjust(8),
            f"{part.bytes / plan.target.memory:6.1%}",
            ", ".join(part.of),
        )
        for glyph, part in zip(glyphs, parts, strict=True)
    ]
    return f"  [{bar}]\n{facts(rows)}"


def memory_parts(memory: Memory, device: int) -> tuple[Part, ...]:
    """What the memory of a device of so many bytes goes to."""
    buffers = {name: getattr(memory, name) for name in ("activations", "logits", "history", "scheduler")}
    if memory.recall:
        buffers["recall"] = memory.recall
    return (
        Part("weights", memory.weights),
        Part("KV", memory.kv),
        Part("buffers", sum(buffers.values()), tuple(f"{name} {size_text(size)}" for name, size in buffers.items())),
        Part("free", memory.free),
        Part("not ours", device - memory.limit, ("beyond target.memory_fraction",)),
    )


def _lengths(sizes: list[int], width: int) -> list[int]:
    """`width` characters shared out by size; what is there at all has one at least."""
    total = sum(sizes)
    lengths = [max(size * width // total, size > 0) for size in sizes]
    # What rounding left over goes to the largest, which shows it least.
    lengths[sizes.index(max(sizes))] += width - sum(lengths)
    return lengths
