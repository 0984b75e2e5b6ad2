"""KV paging: how large blocks and pages are, how many pages a row needs, and how groups share the memory for KV.

A layer group with a window frees the pages that every later query is past, so a row holds at most the pages that a
window and a prefill chunk can touch. Groups draw from separate pools; the pools are sized so that a full batch of
equally long rows uses them all up at once, and so that one row of the longest context always fits.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dualpace.plan.plan import GroupPages, LayerGroup, Model
from dualpace.plan.roofline import kv_token_bytes


@dataclass(frozen=True)
class KvLayout:
    """What page counts follow from. `cards` share the KV heads of every block; bytes are those of one card."""

    model: Model
    page_size: int
    prefill_chunk: int
    cards: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one page in one layer."""
        return self.page_size * kv_token_bytes(self.model) // self.cards

    def page_bytes(self, group: LayerGroup) -> int:
        """Bytes of one page in all layers of `group`."""
        return self.block_bytes * len(group.layers)

    def row_pages(self, group: LayerGroup, tokens: int) -> int:
        """Most pages of `group` that a row of `tokens` tokens holds at a time."""
        pages = _ceil(tokens, self.page_size)
        if group.window:
            pages = min(pages, _ceil(group.window + self.prefill_chunk, self.page_size) + 1)
        return pages

    def row_bytes(self, tokens: int) -> int:
        """Bytes that a row of `tokens` tokens holds at most."""
        return sum(self.row_pages(group, tokens) * self.page_bytes(group) for group in self.model.groups)

    def longest_row(self, budget: int, limit: int) -> int:
        """Tokens of the longest row that `budget` bytes hold, at most `limit`; 0 if not even a page fits."""
        if self.row_bytes(limit) <= budget:
            return limit
        return _largest(limit // self.page_size, lambda n: self.row_bytes(n * self.page_size) <= budget) * (
            self.page_size
        )

    def pools(self, budget: int, rows: int, context: int, resident: int) -> tuple[GroupPages, ...] | None:
        """Pages of each group within `budget` bytes; None if `rows` rows cannot have a page each.

        `context` is the longest row, `resident` what of it must fit device memory.
        """

        def pages_at(pages_each: int) -> list[int]:
            tokens = pages_each * self.page_size
            return [
                max(rows * self.row_pages(group, min(tokens, context)), self.row_pages(group, resident))
                for group in self.model.groups
            ]

        def bytes_of(pages: list[int]) -> int:
            return sum(n * self.page_bytes(group) for n, group in zip(pages, self.model.groups, strict=True))

        most = _ceil(context, self.page_size)
        each = _largest(most, lambda n: bytes_of(pages_at(n)) <= budget)
        if each == 0:
            return None
        pages = pages_at(each)
        if each < most:
            # What is left is less than one more page for every row: each pool gets its part of that step.
            more = pages_at(each + 1)
            left, step = budget - bytes_of(pages), bytes_of(more) - bytes_of(pages)
            pages = [n + (m - n) * left // step for n, m in zip(pages, more, strict=True)]
        return tuple(
            GroupPages(
                group=group.name,
                pages=n,
                block_bytes=self.block_bytes,
                page_bytes=self.page_bytes(group),
                pages_per_row=most,
            )
            for n, group in zip(pages, self.model.groups, strict=True)
        )


def _ceil(tokens: int, size: int) -> int:
    return -(-tokens // size)


def _largest(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest n of 1..limit that fits, given that whatever is smaller fits too; 0 if none does."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
