"""Every struct that crosses a boundary (process, language or device), declared once, as data.

Counts name constants of `common/config.hpp` where they depend on the plan. `abi` makes C++ and ctypes of this table.
"""

from dataclasses import dataclass
from enum import IntEnum

MAGIC = 0x6563_6150_6C61_7544  # "DualPace" in memory
LINE = 64
MAX_STOP_TOKENS = 32
MAX_BIAS = 300
MAX_TOP_LOGPROBS = 20
# Splits of a decoding row that a CPU worker attends to for one partial result.
ITEM_SPLITS = 4


class Finish(IntEnum):
    """Why a request ended. NONE: it has not. ENGINE_GONE is the frontend's word, no engine writes it."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3
    ERROR = 4
    ENGINE_GONE = 5


class StepKind(IntEnum):
    """What a step holds: nothing, rows of one token each, or at least one row of several."""

    IDLE = 0
    DECODE = 1
    MIXED = 2


class Route(IntEnum):
    """How decode attention of a layer group is done. AUTO: as the cost model says; no step's own."""

    AUTO = 0
    SPLIT = 1
    WORKQUEUE = 2
    FLASHINFER = 3
    HOST = 4


class RecordType(IntEnum):
    """What a record of a request or abort ring asks for."""

    SUBMIT = 1
    ABORT = 2
    FINISH = 3


class Lane(IntEnum):
    """A chain of steps with step buffers of its own. SLOW: of rows that have KV in host memory."""

    FAST = 0
    SLOW = 1


ENUMS: tuple[type[IntEnum], ...] = (Finish, Lane, StepKind, Route, RecordType)


@dataclass(frozen=True, slots=True)
class Field:
    """A member: `type` is a scalar or a struct, `count` its dimensions, `align` what its offset is a multiple of."""

    name: str
    type: str
    count: tuple[str | int, ...] = ()
    doc: str = ""
    align: int = 1


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct: its size is a multiple of `align`."""

    name: str
    doc: str
    align: int
    fields: tuple[Field, ...]


def _line(name: str, doc: str) -> Field:
    """A word that begins a cache line of its own, so that its writer does not disturb its neighbours' readers."""
    return Field(name, "u32", doc=doc, align=LINE)


_FLAG = Field("flag", "u64", doc="epoch << 32 | index + 1 of this record, stored last; nothing else says it is there")

STRUCTS: tuple[Struct, ...] = (
    Struct(
        "SubmitRecord",
        "A request: its parameters and tokens are a span of the arena.",
        LINE,
        (
            Field("type", "u32", doc="RecordType::kSubmit"),
            Field("arena_begin", "u32", doc="word of the arena at which the span begins; it does not wrap"),
            Field("arena_words", "u32", doc="length of the span, in words"),
            Field("tag", "u64", doc="the frontend's name for the request"),
            Field("reserved", "u8", (32,)),
            _FLAG,
        ),
    ),
    Struct(
        "AbortRecord",
        "Ends a request early; one that has ended is left alone.",
        LINE,
        (
            Field("type", "u32", doc="RecordType::kAbort, or kFinish: it ends with Finish::kStop"),
            Field("index", "u32", doc="index of the request's submit record"),
            Field("reserved", "u8", (48,)),
            _FLAG,
        ),
    ),
    Struct(
        "RequestParams",
        "Head of an arena span; stop ids, ids with a bias, their biases (f32), prompt, keys of its pages (u64) follow.",
        8,
        (
            Field("seed", "u64"),
            Field("prompt_tokens", "u32"),
            Field("stop_count", "u32"),
            Field("bias_count", "u32"),
            Field("max_tokens", "u32", doc="most tokens to generate; 0: the prompt is computed and no more"),
            Field("min_tokens", "u32", doc="stop ids are not sampled before"),
            Field("priority", "u32", doc="higher is served first, to 255"),
            Field("top_k", "u32", doc="0: off"),
            Field("top_p", "f32"),
            Field("min_p", "f32"),
            Field("temperature", "f32", doc="0: greedy"),
            Field("repetition_penalty", "f32"),
            Field("presence_penalty", "f32"),
            Field("frequency_penalty", "f32"),
            Field("logprobs", "u32", doc="0: none; k + 1: the token's and those of the k most probable"),
            Field("prompt_logprobs", "u32", doc="likewise for the tokens of the prompt, from its second on"),
            Field("sparse", "u32", doc="1: tokens may attend to chosen blocks, if most of the KV is in host memory"),
        ),
    ),
    Struct(
        "TokenRecord",
        "One event of a request: a token, its end, or both. Tokens of the prompt come first, in order.",
        LINE,
        (
            Field("tag", "u64"),
            Field("index", "u32", doc="of the token among those generated, or in the prompt"),
            Field("token", "i32", doc="-1: none"),
            Field("logprob", "f32", doc="of the token under the model alone, 0 unless it was asked for"),
            Field("finish", "u32", doc="Finish"),
            Field("prompt_tokens", "u32"),
            Field("cached_tokens", "u32", doc="prompt tokens whose KV was reused"),
            Field("top_count", "u32", doc="entries of Ring::tops that belong to this record"),
            Field("of_prompt", "u32", doc="1: a token of the prompt, for its logprob"),
            Field("sparse_tokens", "u32", doc="generated so far by attention that left blocks out"),
            Field("reserved", "u8", (12,)),
            _FLAG,
        ),
    ),
    Struct(
        "TopLogprobs",
        "The most probable tokens where one was sampled, best first.",
        32,
        (
            Field("token", "i32", (MAX_TOP_LOGPROBS,), doc="-1: no more can be drawn"),
            Field("logprob", "f32", (MAX_TOP_LOGPROBS,)),
        ),
    ),
    Struct(
        "Counters",
        "Totals since the engine started.",
        8,
        (
            Field("accepted", "u64", doc="requests"),
            Field("finished", "u64", doc="requests that ended by a stop id or by length"),
            Field("aborted", "u64", doc="requests"),
            Field("failed", "u64", doc="requests that ended with an error"),
            Field("prefilled", "u64", doc="tokens of prompts and recomputed rows run through the model"),
            Field("generated", "u64", doc="tokens"),
            Field("preempted", "u64", doc="rows that gave up their pages"),
            Field("nonfinite", "u64", doc="sampled rows with a logit that was NaN or infinite"),
            Field("malformed", "u64", doc="records refused"),
            Field("reused", "u64", doc="tokens whose KV an admitted request found"),
            Field("evicted", "u64", doc="cached pages given to others"),
            Field("exhausted", "u64", doc="steps in which a request waited for pages"),
            Field("epochs", "u64", doc="claims and ends of claims of a ring"),
            Field("attention_bytes", "u64", doc="of KV that decode attention read, in all layers"),
            Field("attention_merge_bytes", "u64", doc="of partial results that it wrote and read again"),
            Field("attention_items", "u64", doc="its tasks, in all layers"),
            Field("attention_launches", "u64", doc="of its kernels, in all layers; those of routes not taken apart"),
            Field("split_steps", "u64", doc="layer groups in a step that went the split route"),
            Field("workqueue_steps", "u64", doc="likewise, the workqueue route"),
            Field("flashinfer_steps", "u64", doc="likewise, the flashinfer route"),
            Field("host_steps", "u64", doc="likewise, the CPU engine's"),
            Field("slow_steps", "u64", doc="forward passes of rows with KV in host memory"),
            Field("slow_step_ns", "u64", doc="that these took"),
            Field("recall_stall_ns", "u64", doc="that these waited for blocks from host memory"),
            Field("link_waits", "u64", doc="steps in which a request waited for the link to host memory"),
            Field("recall_hits", "u64", doc="blocks that a layer's tokens chose and that were on the card"),
            Field("recall_misses", "u64", doc="blocks brought from host memory for a layer"),
            Field("recalled_bytes", "u64", doc="of these"),
            Field("sent_bytes", "u64", doc="of blocks that left for host memory"),
        ),
    ),
    Struct(
        "AttentionWork",
        "What decode attention of a layer group does in a step, in each of its layers.",
        8,
        (
            Field("route", "u32", doc="Route"),
            Field("split_tokens", "u32", doc="keys of a split; 0 where nothing is split alike"),
            Field("items", "u32", doc="tasks"),
            Field("launches", "u32", doc="kernels that work"),
            Field("bytes", "u64", doc="of KV read"),
            Field("merge_bytes", "u64", doc="of partial results written and read"),
        ),
    ),
    Struct(
        "EngineStatus",
        "What an engine says of itself; it alone writes it. Pages are those of the scarcest layer group.",
        LINE,
        (
            Field("heartbeat", "u64", doc="moves while the scheduler's loop does, and between a host's operations"),
            Field("steps", "u64", doc="forward passes"),
            Field("ready", "u32"),
            Field("stopped", "u32"),
            Field("running", "u32", doc="rows"),
            Field("waiting", "u32", doc="requests"),
            Field("waiting_tokens", "u64"),
            Field("free_pages", "u32", doc="that no row holds"),
            Field("cached_pages", "u32", doc="of these, with contents that a prompt may find"),
            Field("total_pages", "u32"),
            Field("slow_rows", "u32", doc="rows with KV in host memory, among those running"),
            Field("host_pages", "u32", doc="pages in host memory that rows have or are promised"),
            Field("total_host_pages", "u32"),
            Field("epoch", "u32", doc="of the engine: one more than of the engine before it"),
            Field("counters", "Counters"),
        ),
    ),
    Struct(
        "Doorbell",
        "Where a frontend wakes an engine that has parked: nothing of it runs but a process that waits here.",
        LINE,
        (Field("parked", "u32", doc="1: by a device that parks; 0: by a frontend that has written. A futex"),),
    ),
    Struct(
        "RingControl",
        "Indices of a ring's three queues. Each counts records read, modulo 2^32, from 0 in every epoch.",
        LINE,
        (
            _line("epoch", "by the frontend: odd from claim to close, even from then on; by the engine if it dies"),
            _line("token_read", "by the frontend"),
            _line("seen_epoch", "by the engine: the epoch that the two counts below belong to"),
            Field("submit_read", "u32", doc="by the engine; the arena spans of these records are free"),
            Field("abort_read", "u32", doc="by the engine"),
            Field(
                "token_written",
                "u64",
                doc="by the engine: epoch << 32 | token records that are whole, for who looks from afar",
            ),
        ),
    ),
    Struct(
        "Ring",
        "All that one frontend shares with the engine.",
        LINE,
        (
            Field("control", "RingControl"),
            Field("submits", "SubmitRecord", ("kRequestSlots",)),
            Field("aborts", "AbortRecord", ("kRequestSlots",)),
            Field("tokens", "TokenRecord", ("kTokenSlots",)),
            Field("tops", "TopLogprobs", ("kTokenSlots",), doc="of the token record of the same slot"),
            Field("arena", "u32", ("kArenaWords",)),
        ),
    ),
    Struct(
        "MemoryHeader",
        "What a mapping is; written before the file gets its name.",
        LINE,
        (
            Field("magic", "u64"),
            Field("layout", "u64", doc="kLayoutHash of the writer"),
            Field("bytes", "u64", doc="of the whole mapping"),
            Field("rings", "u32"),
        ),
    ),
    Struct(
        "RingMemory",
        "The whole mapping.",
        LINE,
        (
            Field("header", "MemoryHeader"),
            Field("status", "EngineStatus"),
            Field("doorbell", "Doorbell"),
            Field("rings", "Ring", ("kRings",)),
        ),
    ),
    Struct(
        "StepBuffers",
        "One step's inputs, its block tables and what was sampled. Row: of the batch; row slot: of the tables.",
        LINE,
        (
            Field("step", "u64"),
            Field("lane", "u32", doc="Lane: whose steps these are, set once"),
            Field("kind", "u32", doc="StepKind"),
            Field("rows", "u32"),
            Field("tokens", "u32"),
            Field("samples", "u32", doc="tokens whose logits are looked at"),
            Field(
                "scored", "u32", doc="of these, the first: what follows each is the prompt's own token, none is drawn"
            ),
            Field("program", "u32", doc="the least of the plan's step programs that holds the step"),
            Field("token", "i32", ("kMaxStepTokens",), align=LINE),
            Field("position", "i32", ("kMaxStepTokens",), align=LINE),
            Field("token_row", "i32", ("kMaxStepTokens",), doc="row of each token", align=LINE),
            Field(
                "slot",
                "i32",
                ("kGroups", "kMaxStepTokens"),
                doc="page * kPageSize + offset at which the token's KV goes",
                align=LINE,
            ),
            Field("row_slot", "i32", ("kMaxBatch",), align=LINE),
            Field(
                "query_begin", "i32", ("kMaxBatch + 1",), doc="first token of each row, then their count", align=LINE
            ),
            Field("context", "i32", ("kMaxBatch",), doc="KV length of each row after the step", align=LINE),
            Field(
                "table",
                "i32",
                ("kGroups", "kMaxBatch", "kPagesPerRow"),
                doc="pages by row slot and position / kPageSize; -1: none",
                align=LINE,
            ),
            Field("attention", "AttentionWork", ("kGroups",), doc="by attention, which reads its route there"),
            Field("sample_index", "i32", ("kMaxSamples",), doc="token whose logits are sampled", align=LINE),
            Field("sample_slot", "i32", ("kMaxSamples",), doc="row slot of each sample", align=LINE),
            Field(
                "sampled",
                "i32",
                ("kMaxSamples",),
                doc="by the sampler: the token, -1 for logits with a NaN",
                align=LINE,
            ),
            Field("logprob", "f32", ("kMaxSamples",), doc="by the sampler", align=LINE),
            Field("top", "TopLogprobs", ("kMaxSamples",), doc="by the sampler", align=LINE),
        ),
    ),
    Struct(
        "Drive",
        "What the host leaves with the device, so that it launches steps by itself.",
        LINE,
        (
            Field("program", "u64", ("kPrograms",), doc="the executable graph of each step program"),
            Field("stop", "u32", doc="by the host: begin no more steps", align=LINE),
            Field("error", "u32", doc="by the device: why it could not launch a step, a cudaError_t", align=LINE),
            Field("parked", "u32", doc="by the device: it has launched none, and waits to be started again"),
        ),
    ),
    # Cooperative decoding: what a device asks of CPU workers, and what they answer.
    Struct(
        "WorkItem",
        "Blocks of the host pool that a row's token attends to in a layer, for a CPU worker.",
        LINE,
        (
            Field(
                "flag",
                "u64",
                doc="generation of the row's life << 32 | ticket; 0 while nobody is to work on it or it is written",
            ),
            Field("row", "u32", doc="whose query it is"),
            Field("layer", "u32", doc="of those in host memory"),
            Field("blocks", "u32"),
            Field("block", "i32", ("kItemBlocks",), doc="by number in the host pool, each full of tokens"),
        ),
    ),
    Struct(
        "WorkAnswer",
        "Attention to the blocks of an item alone, as every producer of partial results leaves it.",
        LINE,
        (
            Field("flag", "u64", doc="the item's"),
            Field("nanoseconds", "u64", doc="that the worker took"),
            Field("lse", "f32", ("kHeads",), doc="natural logarithm of the sum of exponentials", align=LINE),
            Field("out", "f32", ("kHeads", "kHeadDim"), doc="normalised", align=LINE),
        ),
    ),
)
