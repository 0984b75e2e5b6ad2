"""Who attends to blocks in host memory: the card, which recalls them over the link, or CPU workers where they lie.

Both read host memory, each block once, so a layer takes no less than all its blocks at the rate of that memory. Below
it, the link and the workers share them so that they end together. Of the divisions that take equally long the one with
the fewest blocks for workers is taken: their cores are others' too. Blocks in the card's slots are no part of this.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dualpace.plan.plan import CooperativePace, Model, Offload, RecallPace, Target
from dualpace.plan.recall import offloaded_layers
from dualpace.plan.roofline import kv_token_bytes
from dualpace.plan.structs import ITEM_SPLITS

FP32_BYTES = 4
# How much of a new rate is believed.
BELIEVED = 1 / 8
# Below that much trust workers get nothing but one item now and then, by which they may regain it.
LEAST_TRUST = 1 / 64
PROBED = 64
FORECAST_WORKERS = (4, 8, 16)


class Rates(NamedTuple):
    """Bytes a second of the link, of host memory, and of one worker's attention; seconds before an answer is back."""

    link: float
    dram: float
    worker: float
    wait: float


# Read on an H200's host of 16 cores: memory by all of them, four to eight workers over their rings.
DRAM = 95e9
WORKER = 9e9
WAIT = 50e-6


class Division(NamedTuple):
    """Blocks of a layer that are recalled, those that workers attend to, and seconds until the last of them is done."""

    recalled: int
    attended: int
    seconds: float


def answer_share(model: Model, split_tokens: int) -> float:
    """Bytes of partial results that come over the link for each byte that workers attend to."""
    answer = model.heads * (model.head_dim + 1) * FP32_BYTES
    return answer / (ITEM_SPLITS * split_tokens * kv_token_bytes(model))


def seconds(blocks: int, attended: int, block_bytes: float, answers: float, rates: Rates, workers: float) -> float:
    """What a layer takes of whose `blocks` workers attend to `attended`; `answers` is their answer_share()."""
    over_link = (blocks - attended + answers * attended) * block_bytes / rates.link
    by_workers = rates.wait + attended * block_bytes / (workers * rates.worker) if attended else 0.0
    return max(over_link, by_workers, blocks * block_bytes / rates.dram)


def divide(blocks: int, block_bytes: float, answers: float, rates: Rates, workers: float) -> Division:
    """The division of a layer's blocks that takes least; `workers` may be a part of one, or 0."""
    if workers <= 0 or blocks == 0:
        return Division(blocks, 0, seconds(blocks, 0, block_bytes, answers, rates, workers))
    link, worker = block_bytes / rates.link, block_bytes / (workers * rates.worker)
    balanced = (blocks * link - rates.wait) / (worker + (1 - answers) * link)
    # Nothing is gained by more than what the link has to be spared for the rest to arrive at the rate of memory.
    needed = blocks * (1 - rates.link / rates.dram) / (1 - answers)
    best = max(min(balanced, needed, blocks), 0.0)
    choices = {0, int(best), min(int(best) + 1, blocks)}
    attended = min(choices, key=lambda n: (seconds(blocks, n, block_bytes, answers, rates, workers), n))
    return Division(blocks - attended, attended, seconds(blocks, attended, block_bytes, answers, rates, workers))


class Seen(NamedTuple):
    """What a turn of layers showed: bytes and seconds of recalls, and of each worker; items by how they ended."""

    recalled: float = 0.0
    recall_seconds: float = 0.0
    attended: float = 0.0
    worker_seconds: float = 0.0
    answered: int = 0
    late: int = 0


class Belief(NamedTuple):
    """What the next division is made by: rates, and the share of the workers that is counted on."""

    rates: Rates
    trust: float = 1.0

    def workers(self, allowed: int) -> float:
        """Of `allowed` ones, what the spec and the cgroup leave; 0 while they are not to be trusted."""
        return allowed * self.trust if self.trust >= LEAST_TRUST else 0.0

    def probes(self, turn: int) -> bool:
        """Whether workers that are not trusted get an item in this turn."""
        return self.trust < LEAST_TRUST and turn % PROBED == 0


def learn(belief: Belief, seen: Seen) -> Belief:
    """The belief after `seen`. Items that were late cost trust at once; a turn without any doubles it."""
    rates = belief.rates._replace(
        link=_blend(belief.rates.link, seen.recalled, seen.recall_seconds),
        worker=_blend(belief.rates.worker, seen.attended, seen.worker_seconds),
    )
    given = seen.answered + seen.late
    if seen.late:
        return Belief(rates, belief.trust * seen.answered / given)
    return Belief(rates, min(max(2 * belief.trust, LEAST_TRUST), 1.0) if given else belief.trust)


def _blend(rate: float, amount: float, seconds: float) -> float:
    return rate + BELIEVED * (amount / seconds - rate) if seconds > 0 else rate


def paces(
    model: Model, target: Target, offload: Offload, split_tokens: int, recalls: Iterable[RecallPace]
) -> Iterator[CooperativePace]:
    """The slow lane at the contexts of `recalls` with so many workers as hosts may have, beside recall alone.

    `recalls` are its paces if nothing that a token may choose is on the card, which holds here too.
    """
    layers = offloaded_layers(model)
    rates = Rates(target.link_bandwidth * target.count, DRAM, WORKER, WAIT)
    answers = answer_share(model, split_tokens)
    most = offload.cpu_workers or FORECAST_WORKERS[-1]
    for pace in recalls:
        kept = offload.sinks + offload.recent if offload.sparse_blocks else offload.cache_blocks
        blocks = pace.rows * (pace.blocks - kept)
        block_bytes = pace.rows * pace.row_bytes / (layers * blocks)
        for workers in sorted({0, offload.cpu_workers, *(n for n in FORECAST_WORKERS if n <= most)}):
            division = divide(blocks, block_bytes, answers, rates, workers)
            host = layers * division.seconds
            yield CooperativePace(
                rows=pace.rows,
                context=pace.context,
                workers=workers,
                blocks=pace.blocks,
                attended=division.attended / blocks,
                host_seconds=host,
                step_seconds=pace.step_seconds,
                tokens_per_second=pace.rows / max(host, pace.step_seconds),
            )
