"""What successive tokens chose, as benchmarks.block_choice records it, and how much of it slots would have had."""

from typing import Any


def chosen(recorded: dict[str, Any]) -> dict[str, list[set[int]]]:
    """By layer, the pages that each token chose."""
    return {layer: _sets(steps) for layer, steps in recorded["layers"].items()}


def _sets(steps: list[list[int]]) -> list[set[int]]:
    sets = [set[int]()]
    for changes in steps:
        dropped = {-1 - change for change in changes if change < 0}
        sets.append(sets[-1] - dropped | {change for change in changes if change >= 0})
    return sets[1:]


def hits(tokens: list[set[int]], slots: int, warm: int = 32) -> float:
    """The share of what tokens chose, `warm` of them apart, that was in one of `slots`, those longest unused taken."""
    used: dict[int, int] = {}
    found = 0
    for now, pages in enumerate(tokens):
        if now >= warm:
            found += len(pages & used.keys())
        used |= dict.fromkeys(pages, now)
        for page in sorted(used, key=lambda page: used[page])[: max(0, len(used) - slots)]:
            del used[page]
    return found / sum(map(len, tokens[warm:]))
