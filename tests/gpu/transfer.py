"""Queues of transfers on the device, as whoever publishes lists lays them out."""

from collections.abc import Sequence

import torch

# Words in front of a queue's lists: those published, the last of a launch, those ended.
PUBLISHED, UNTIL, ENDED, HEAD = 0, 1, 2, 3


class Queue:
    """TransferQueue<places, most> of common/transfer.hpp on the device; `ended` lists have been done before."""

    def __init__(self, places: int, most: int, ended: int = 0) -> None:
        self.words = torch.zeros(HEAD + 2 * places + 2 * places * most, dtype=torch.int32, device="cuda")
        self._counts = self.words[HEAD + places : HEAD + 2 * places]
        self._items = self.words[HEAD + 2 * places :].view(places, most, 2)
        self._next = ended
        self.words[:HEAD] = _signed(ended)

    @property
    def ended(self) -> int:
        """Lists that have ended."""
        return int(self.words[ENDED].item()) % 2**32

    def place(self, ticket: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the list of `ticket` is: its length [1], and room for the longest, [most][2]."""
        place = ticket % len(self._counts)
        return self._counts[place : place + 1], self._items[place]

    def pairs(self, ticket: int) -> list[tuple[int, int]]:
        """What the list of `ticket` says."""
        count, items = self.place(ticket)
        return [tuple(pair) for pair in items[: int(count)].tolist()]

    @property
    def published(self) -> int:
        """Lists that are there."""
        return int(self.words[PUBLISHED].item()) % 2**32

    def write(self, pairs: Sequence[tuple[int, int]] | torch.Tensor) -> None:
        """The next list, [n][2]: from and to. It is not there yet."""
        self._next = (self._next + 1) % 2**32
        place, items = self._next % len(self._counts), torch.as_tensor(pairs, dtype=torch.int32).reshape(-1, 2)
        self._items[place, : len(items)] = items.cuda()
        self._counts[place] = len(items)

    def publish(self, lists: int | None = None) -> None:
        """So many lists are there, all by default, counted from the queue's start."""
        self.words[PUBLISHED] = _signed(self._next if lists is None else lists)

    def end_with_last(self) -> None:
        """The next launch does all lists that are written."""
        self.words[UNTIL] = _signed(self._next)


def _signed(word: int) -> int:
    return (word + 2**31) % 2**32 - 2**31
