"""Capacities: batch, prefill chunk, context, queues and KV pages, so that all of it fits one device."""

from typing import NamedTuple

from dualpace.plan import memory, recall
from dualpace.plan.error import CapacityError, PlanError
from dualpace.plan.paging import KvLayout
from dualpace.plan.plan import Attention, GroupPages, Memory, Model, Offload, Program, Schedule, Target
from dualpace.plan.quantity import size_text
from dualpace.plan.roofline import kv_token_bytes, parameters
from dualpace.spec.models import Spec

# What `auto` means, by the kind of target.
MAX_BATCH = {"cuda": 256, "cpu": 32}
PREFILL_CHUNK = {"cuda": 2048, "cpu": 512}
CPU_KV_BUDGET = 2**30
# What is left on a GPU is rounded down, so that compiled page counts outlive small changes of a buffer.
KV_STEP = 2**26
QUEUED_TOKENS = 2**20
# `max_batch: auto` is halved until a full batch has at least this much KV a row.
MIN_ROW_TOKENS = 256
# Matrix products take about the same time up to 64 rows, so few decode programs are enough there.
DECODE_BUCKETS = (1, 8, 32, 64, 96, 128, 160, 192, 224, 256, 384, 512, 1024)
# Tokens of a step with prefill, whose time grows with them: a step is at most this much larger than what it holds.
MIXED_BUCKETS = (*range(64, 1024, 64), *range(1024, 2048, 128))


class Capacity(NamedTuple):
    """What the memory of a device is cut into."""

    schedule: Schedule
    pages: tuple[GroupPages, ...]
    memory: Memory
    offload: Offload


class _Buffers(NamedTuple):
    """Everything but weights and KV, in bytes, and the pages of token history among it."""

    activations: int
    logits: int
    history_pages: int
    history: int
    scheduler: int
    recall: int

    @property
    def bytes(self) -> int:
        return self.activations + self.logits + self.history + self.scheduler + self.recall


def resolve_capacity(spec: Spec, model: Model, attention: Attention, target: Target, offload: Offload) -> Capacity:
    """Capacities of one card. Raises CapacityError when weights, buffers or the asked capacities do not fit it."""
    asked = spec.scheduler.max_batch
    rows = MAX_BATCH[target.kind] if asked == "auto" else asked
    while True:
        sizing = _Sizing(spec, model, attention, target, offload, rows)
        if asked != "auto" or rows == 1 or sizing.serves_full_batch():
            return sizing.capacity()
        rows //= 2


class _Sizing:
    """The sums for one `max_batch`. `ceiling` is the most context there could be, before memory has its say."""

    def __init__(
        self, spec: Spec, model: Model, attention: Attention, target: Target, offload: Offload, rows: int
    ) -> None:
        self.spec, self.model, self.attention, self.target, self.rows = spec, model, attention, target, rows
        asked = spec.model.max_context
        self.ceiling = model.context if asked == "auto" else asked
        chunk = spec.scheduler.prefill_chunk
        self.chunk = min(PREFILL_CHUNK[target.kind], self.ceiling) if chunk == "auto" else chunk
        # Of a step, decoding rows among them: products take as long as tiles of tokens, which a chunk is whole ones of.
        self.tokens = max(self.chunk, 2 * rows)
        self.samples = min(max(rows, memory.LEAST_SAMPLES), self.tokens)
        self.layout = KvLayout(model, attention.page_size, self.chunk, target.count)
        # Each ring is owed one.
        self.requests = max(rows + spec.scheduler.max_queued_requests, spec.nic.rings)
        self.limit = int(target.memory * spec.target.memory_fraction)
        self.weights = -(-parameters(model) * model.element_bytes // target.count)
        self.offload = self._with_host_pages(offload)
        # An upper bound: buffers that follow from the KV are sized for all the memory there is.
        self.available = self.limit - self.weights
        lane = recall.widest_lane(self.offload, rows, self._row_pages(self.ceiling))
        self.available -= self.buffers(self.ceiling, self.kv_tokens(max(self.available, 0)), lane).bytes

    def _with_host_pages(self, offload: Offload) -> Offload:
        """`offload` with the pages of a card's part of the host pool."""
        if offload.mode == "off":
            return offload
        page = recall.host_page_bytes(self.layout)
        if not page:
            raise PlanError(
                ("offload", "mode"), "every layer has a window, so there is no KV to offload", "write `mode: off`"
            )
        return offload.model_copy(update={"host_pages": offload.host_budget // self.target.count // page})

    def _row_pages(self, context: int) -> int:
        return -(-context // self.layout.page_size)

    def kv_tokens(self, kv_bytes: int) -> int:
        """Tokens that all rows together can have with `kv_bytes` of KV, and those in host memory."""
        full = recall.offloaded_layers(self.model)
        most = self.rows * self.ceiling
        if not full:
            return most
        resident = kv_bytes * self.target.count // (full * kv_token_bytes(self.model))
        return min(most, resident + self.offload.host_pages * self.layout.page_size)

    def queued_tokens(self, context: int) -> int:
        asked = self.spec.scheduler.max_queued_tokens
        return max(QUEUED_TOKENS, 2 * context) if asked == "auto" else asked

    def buffers(self, context: int, kv_tokens: int, lane: recall.SlowLane) -> _Buffers:
        """Buffers for rows of up to `context` tokens, `kv_tokens` in all, with such a `lane` beside the fast one."""
        model, rows, tokens, queued = self.model, self.rows, self.tokens, self.spec.scheduler
        # What samples has scratch for a token's logits: on the CPU a thread, and no more threads than rows do.
        scratch = self.samples if self.target.kind == "cuda" else rows
        page_size = self.attention.page_size
        history_pages = memory.history_pages(
            self.queued_tokens(context), queued.max_queued_requests, kv_tokens, context, rows, self.spec.nic.rings
        )
        lanes = 2 if lane.rows else 1
        return _Buffers(
            activations=lanes * self._activations(context),
            logits=lanes * memory.logit_bytes(model, self.samples + scratch),
            history_pages=history_pages,
            history=memory.history_bytes(history_pages, page_size),
            scheduler=memory.scheduler_bytes(
                model,
                rows,
                self.samples,
                tokens,
                context,
                page_size,
                requests=self.requests,
                pages=-(-kv_tokens // page_size),
            ),
            recall=recall.device_bytes(model, self.offload, self._row_pages(context), lane),
        )

    def _activations(self, context: int) -> int:
        model, samples, tokens = self.model, self.samples, self.tokens
        if self.target.kind == "cuda":
            attention = memory.attention_bytes(model, tokens, self.attention.spare_tasks)
            attention += memory.prefill_bytes(model, self.attention.prefill, tokens, self.rows)
            return memory.activation_bytes(model, samples, tokens) + attention
        splits = -(-context // self.attention.split_tokens)
        activations = memory.host_activation_bytes(model, self.rows, samples, tokens, splits)
        return activations + memory.product_bytes(model, tokens)

    def budget(self) -> int:
        """Bytes for KV pages."""
        asked = self.spec.target.kv_budget
        if asked != "auto":
            return asked
        if self.target.kind == "cuda":
            return self.available // KV_STEP * KV_STEP or self.available
        one_row = 0 if self.spec.model.max_context == "auto" else self.layout.row_bytes(self.ceiling)
        return min(self.available, max(CPU_KV_BUDGET, one_row))

    def serves_full_batch(self) -> bool:
        return self.rows * self.layout.row_bytes(min(self.ceiling, MIN_ROW_TOKENS)) <= self.budget()

    def capacity(self) -> Capacity:
        budget = self._checked_budget()
        context = self._context(budget)
        resident = self.layout.longest_row(budget, context)
        pages = self.layout.pools(budget, self.rows, context, resident)
        if pages is None:
            raise CapacityError(
                ("scheduler", "max_batch"),
                f"{size_text(budget)} of KV memory cannot give {self.rows} rows a page each",
                "lower max_batch or raise target.kv_budget",
            )
        kv = sum(group.pages * group.page_bytes for group in pages)
        lane = self._slow_lane(context, pages)
        buffers = self.buffers(context, self.kv_tokens(kv), lane)
        schedule = self._schedule(context, lane.rows, buffers.history_pages)
        offload = self.offload.model_copy(update={"cache_blocks": lane.cache_blocks})
        return Capacity(schedule, pages, self._memory(buffers, kv), offload)

    def _slow_lane(self, context: int, pages: tuple[GroupPages, ...]) -> recall.SlowLane:
        full = (pool.pages for pool, group in zip(pages, self.model.groups, strict=True) if not group.window)
        lane = recall.slow_lane(self.offload, self.rows, self._row_pages(context), min(full, default=0))
        if self.offload.mode == "off" or lane.rows:
            self._check_splits(lane)
            return lane
        if self.rows < 2:
            raise CapacityError(
                ("scheduler", "max_batch"), "1 row is fast or slow, and offload needs both", "raise it to 2 or more"
            )
        raise CapacityError(
            ("target", "kv_budget"),
            f"the KV memory does not hold the {lane.cache_blocks} pages that a row in host memory keeps on the card",
            "raise it, or lower offload.selection.blocks",
        )

    def _check_splits(self, lane: recall.SlowLane) -> None:
        """On the CPU a row that attends to all blocks has them on the card by whole splits of attention."""
        attention, offload = self.attention, self.offload
        least = offload.sinks + offload.recent + attention.split_tokens // attention.page_size
        if self.target.kind == "cpu" and lane.rows and lane.cache_blocks < least:
            raise CapacityError(
                ("target", "kv_budget"),
                f"{lane.cache_blocks} blocks of a layer on the card are too few for a row in host memory: the first "
                f"and last ones and {attention.split_tokens} tokens, which are attended to at once, are {least}",
                "raise it, or offload.selection.blocks, or lower max_batch",
            )

    def _checked_budget(self) -> int:
        fraction = self.spec.target.memory_fraction
        if self.available <= 0:
            raise CapacityError(
                ("target",),
                f"{size_text(self.weights)} of weights and {size_text(self.limit - self.weights - self.available)} of "
                f"buffers exceed {size_text(self.limit)}, {fraction:g} of the {self.target.name}'s memory",
                "choose a larger target, more cards, a smaller model, or lower prefill_chunk and max_batch",
            )
        budget = self.budget()
        if budget > self.available:
            raise CapacityError(
                ("target", "kv_budget"),
                f"{size_text(budget)} exceeds the {size_text(self.available)} that weights and buffers leave",
                "lower it, or leave it `auto`",
            )
        return budget

    def _context(self, budget: int) -> int:
        """The longest row, in tokens."""
        in_host = min(self.offload.host_pages * self.layout.page_size, self.ceiling)
        longest = max(self.layout.longest_row(budget, self.ceiling), in_host)
        if longest == 0:
            raise CapacityError(
                ("target", "kv_budget"),
                f"{size_text(budget)} of KV memory does not hold one page of {self.layout.row_bytes(1)} bytes",
                "raise kv_budget",
            )
        if self.spec.model.max_context != "auto" and longest < self.ceiling:
            raise CapacityError(
                ("model", "max_context"),
                f"{self.ceiling} tokens of one row do not fit {self._kv_places(budget)}: "
                f"the largest that fits is {longest}",
                f"lower max_context to {longest} or raise target.kv_budget",
            )
        asked = self.spec.scheduler.max_queued_tokens
        if asked != "auto" and asked < longest:
            raise CapacityError(
                ("scheduler", "max_queued_tokens"),
                f"{asked} tokens cannot hold one prompt of max_context, {longest} tokens",
                f"raise it to {longest} or more, or lower model.max_context",
            )
        return longest

    def _kv_places(self, budget: int) -> str:
        places = f"{size_text(budget)} of KV memory"
        host = self.offload.host_pages * recall.host_page_bytes(self.layout)
        return f"{places} or {size_text(host)} of host memory" if host else places

    def _schedule(self, context: int, slow_rows: int, history_pages: int) -> Schedule:
        rows, queued = self.rows, self.spec.scheduler.max_queued_requests
        smaller = [bucket for bucket in DECODE_BUCKETS if bucket < rows] if self.target.kind == "cuda" else []
        most, samples = self.tokens, self.samples
        short = [bucket for bucket in MIXED_BUCKETS if bucket < most] if self.target.kind == "cuda" else []
        decode = (Program(kind="decode", rows=bucket, tokens=bucket, samples=bucket) for bucket in (*smaller, rows))
        mixed = (
            Program(kind="mixed", rows=min(rows, bucket), tokens=bucket, samples=min(samples, bucket))
            for bucket in (*short, most)
        )
        return Schedule(
            max_batch=rows,
            slow_rows=slow_rows,
            prefill_chunk=self.chunk,
            max_queued_requests=queued,
            max_queued_tokens=self.queued_tokens(context),
            max_requests=self.requests,
            max_context=context,
            prefix_reuse=self.spec.scheduler.prefix_reuse,
            history_page=memory.HISTORY_PAGE,
            history_pages=history_pages,
            programs=(*decode, *mixed),
            park_after=self._park_after(),
        )

    def _park_after(self) -> float:
        asked = self.spec.scheduler.park_after
        if asked == "never":
            return 0.0
        for hindered, why in (
            (self.target.kind == "cpu", "the CPU engine sleeps between its looks anyway"),
            (self.spec.nic.transport == "rdma", "what a NIC writes wakes nobody"),
        ):
            if hindered:
                raise CapacityError(
                    ("scheduler", "park_after"), f"only a GPU with local frontends parks: {why}", "leave it out"
                )
        return asked

    def _memory(self, buffers: _Buffers, kv: int) -> Memory:
        return Memory(
            limit=self.limit,
            weights=self.weights,
            activations=buffers.activations,
            logits=buffers.logits,
            history=buffers.history,
            scheduler=buffers.scheduler,
            recall=buffers.recall,
            kv=kv,
            free=self.limit - self.weights - buffers.bytes - kv,
        )
