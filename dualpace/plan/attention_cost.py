"""What one layer's decode attention costs by each route, and the cheapest: common/attention_cost.hpp for plans.

The device evaluates the same formulas on every step's rows, with the same constants.
"""

from collections.abc import Sequence
from typing import NamedTuple

from dualpace.plan.plan import AskedRoute, AttentionPolicy, KernelCost, LayerGroup, Model, TakenRoute

TASK_KEYS = 64
SPLIT_SIZES = 8
# A CTA attends so many heads together at most, on tensor cores and without them.
TENSOR_SLICE_HEADS, PLAIN_SLICE_HEADS = 16, 8


class SeenKeys(NamedTuple):
    """The keys [begin, end) that a token sees."""

    begin: int
    end: int

    def ranges(self, size: int) -> int:
        """Ranges of `size` keys, from multiples of it on, that hold some of these."""
        return _parts(self.end, size) - self.begin // size


class RouteWork(NamedTuple):
    """What a route makes of a batch; keys count once for each slice of heads that reads them.

    `keys` are read by all CTAs, `tail` by the one that reads most, beyond an equal share; `partials` are results to
    merge, `depth` of them those of the slice that has most.
    """

    keys: int
    tail: int
    partials: int
    depth: int


class RouteChoice(NamedTuple):
    """A route, the keys of its splits (0 but on the split route) and the seconds of a layer."""

    route: TakenRoute
    split_tokens: int
    seconds: float


def seen_keys(group: LayerGroup, rows: int, context: int) -> list[SeenKeys]:
    """What `rows` decoding rows with `context` tokens each see in the layers of `group`."""
    return [SeenKeys(max(context - group.window, 0) if group.window else 0, context)] * rows


def slices(model: Model) -> int:
    """Parts of the query heads that read KV each for itself: as in cuda/attention.cuh."""
    on_tensor_cores = model.element_bytes == 2 and model.head_dim % 16 == 0 and model.head_dim <= 256
    most = TENSOR_SLICE_HEADS if on_tensor_cores else PLAIN_SLICE_HEADS
    return model.kv_heads * _parts(model.gqa_ratio, most)


def slice_heads(model: Model) -> int:
    """Query heads of a slice, the last of a group perhaps excepted."""
    return _parts(model.heads, slices(model))


def workqueue_work(seen: Sequence[SeenKeys], slices: int, ctas: int) -> RouteWork:
    """All keys of each slice in shares of equal length, for `ctas` CTAs; what a share cuts in two is merged."""
    ranges, tokens = sum(keys.ranges(TASK_KEYS) for keys in seen), len(seen)
    share = max(_parts(ranges, _slice_shares(slices, ctas)), 1)
    shares = _parts(ranges, share)
    cuts = max(shares - 1, 0)
    depth = min(_parts(_parts(_longest(seen), TASK_KEYS), share) + 1, shares)
    keys = _keys(seen, slices)
    return RouteWork(
        keys=keys,
        tail=max(share * TASK_KEYS - keys // ctas, 0),
        partials=slices * (cuts + min(cuts, tokens)),
        depth=depth if depth > 1 else 0,
    )


def split_work(seen: Sequence[SeenKeys], slices: int, size: int, ctas: int) -> RouteWork:
    """Splits of `size` keys. The CTA that reads most is taken to have splits as long as there are any."""
    splits = [keys.ranges(size) for keys in seen]
    tasks = _parts(sum(splits), _slice_shares(slices, ctas))
    longest = _longest(seen)
    partials = slices * (sum(splits) - splits.count(1))
    depth = _parts(longest, size)
    keys = _keys(seen, slices)
    tail = max(tasks * min(size, longest) - keys // ctas, 0)
    return RouteWork(keys, tail, partials, depth if depth > 1 else 0)


def _slice_shares(slices: int, ctas: int) -> int:
    """Shares of one slice, all of which are cut alike."""
    return max(ctas // slices, 1)


def _parts(count: int, size: int) -> int:
    """Of how many parts of `size` at most `count` consists."""
    return -(-count // size)


def _keys(seen: Sequence[SeenKeys], slices: int) -> int:
    return slices * sum(keys.end - keys.begin for keys in seen)


def _longest(seen: Sequence[SeenKeys]) -> int:
    return max((keys.end - keys.begin for keys in seen), default=0)


def route_seconds(cost: KernelCost, work: RouteWork) -> float:
    """A roofline: all keys at the bandwidth of memory; the tail of the CTA that reads most, and merges, on top."""
    reading = work.keys * cost.key + work.tail * cost.tail_key
    return cost.start + reading + work.partials * cost.partial + work.depth * cost.merge


def split_sizes(least: int, longest: int) -> list[int]:
    """Split sizes that are looked at, for rows that see up to `longest` keys."""
    sizes = [least << i for i in range(SPLIT_SIZES)]
    enough = next((i for i, size in enumerate(sizes) if size >= longest), SPLIT_SIZES - 1)
    return sizes[: enough + 1]


def candidates(policy: AttentionPolicy, seen: Sequence[SeenKeys], slices: int, split_tokens: int) -> list[RouteChoice]:
    """Every route that was measured, in the order in which equal ones are taken."""
    queue = workqueue_work(seen, slices, policy.ctas)
    found = [RouteChoice("workqueue", 0, route_seconds(policy.own, queue))]
    for size in split_sizes(split_tokens, _longest(seen)):
        work = split_work(seen, slices, size, policy.ctas)
        found.append(RouteChoice("split", size, route_seconds(policy.own, work)))
    if policy.flashinfer is not None:
        queue = workqueue_work(seen, slices, policy.flashinfer_ctas)
        found.append(RouteChoice("flashinfer", 0, route_seconds(policy.flashinfer, queue)))
    return found


def route_taken(
    policy: AttentionPolicy, route: AskedRoute, seen: Sequence[SeenKeys], slices: int, split_tokens: int
) -> RouteChoice:
    """What the device does with a batch that sees these keys: `route`, or if that is `auto` the cheapest.

    Raises ValueError for a route without constants.
    """
    found = candidates(policy, seen, slices, split_tokens)
    if route == "auto":
        return min(found, key=lambda choice: choice.seconds)
    # A split route that is asked for has one size: its results do not depend on the batch.
    for choice in found:
        if choice.route == route:
            return choice
    raise ValueError(f"the {route} route was not measured")
