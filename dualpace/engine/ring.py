"""The frontend's end of a ring. Flags are stored and loaded by the ring library, never here."""

import ctypes
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from dualpace.plan.abi import fixed_reader, fixed_view
from dualpace.plan.structs import LINE, Finish

__all__ = ["Finish", "FrontendRing", "RingError", "SamplingParams", "Status", "TokenEvent"]

_BATCH = 256
_ERROR_BYTES = 256
_LARGEST = 2**31 - 1
_Params = fixed_view("RequestParams")
_Record = fixed_view("TokenRecord")
_Tops = fixed_view("TopLogprobs")
_Status = fixed_view("EngineStatus")
_STATUS, _STATUS_NAMES = fixed_reader("EngineStatus")
_TOKEN_RECORD, _ = fixed_reader("TokenRecord")
_FINISHES = tuple(Finish)


class RingError(Exception):
    """A ring that cannot be claimed; the message names the file and the remedy."""


class ReplacedError(RingError):
    """An engine that serves another bundle than before: what the frontend knows is of the old one."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request is sampled and when it ends. Temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off.

    Of what waits in a ring the higher `priority`, from 0 to 255, is served first, though none waits for ever.
    `stop_tokens` holds the end-of-sequence ids too unless they are to be ignored.
    The repetition penalty counts prompt and generated tokens, the other two generated ones. `logit_bias` holds pairs
    of a token id and its bias. `logprobs` asks for each token's log probability and those of that many most probable
    tokens, `prompt_logprobs` for those of the prompt's tokens from the second on. With 0 `max_tokens` these are all.
    `sparse`: while most of its KV is in host memory, generated tokens may attend to chosen blocks only.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    stop_tokens: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    priority: int = 0
    sparse: bool = False


class TokenEvent(NamedTuple):
    """A token of a request (-1: none), its end, or both. `index` counts generated tokens.

    `of_prompt`: a token of the prompt, at `index`; these come in order, before any that is generated.
    Log probabilities are the model's, before anything that sampling parameters do; 0 and none unless asked for.
    `top` holds the most probable tokens with theirs, best first. `sparse_tokens` have been generated so far by
    attention that left blocks out.
    """

    tag: int
    index: int  # type: ignore[assignment]  # tuple.index is not missed
    token: int
    logprob: float
    finish: Finish
    prompt_tokens: int
    cached_tokens: int
    top: tuple[tuple[int, float], ...] = ()
    of_prompt: bool = False
    sparse_tokens: int = 0


# In half the time that TokenEvent() takes, which calls Python.
_event: Callable[[tuple[Any, ...]], TokenEvent] = partial(tuple.__new__, TokenEvent)


class Status(NamedTuple):
    """What the engine says of itself.

    `epoch` is one more than that of the engine before it; `alive`: its process exists and has not stopped. Pages are
    those of the scarcest group: free ones no row holds, and of these the cached ones have contents to be found.
    """

    epoch: int
    heartbeat: int
    steps: int
    running: int
    waiting: int
    waiting_tokens: int
    free_pages: int
    cached_pages: int
    total_pages: int
    slow_rows: int
    host_pages: int
    total_host_pages: int
    ready: bool
    stopped: bool
    alive: bool
    accepted: int
    finished: int
    aborted: int
    failed: int
    prefilled: int
    generated: int
    preempted: int
    nonfinite: int
    malformed: int
    reused: int
    evicted: int
    exhausted: int
    epochs: int
    attention_bytes: int
    attention_merge_bytes: int
    attention_items: int
    attention_launches: int
    split_steps: int
    workqueue_steps: int
    flashinfer_steps: int
    host_steps: int
    slow_steps: int
    slow_step_ns: int
    recall_stall_ns: int
    link_waits: int
    recall_hits: int
    recall_misses: int
    recalled_bytes: int
    sent_bytes: int


class Transport(Protocol):
    """Carries what the ring library has written to the engine, and what the engine has written to the ring library."""

    def claimed(self) -> None:
        """The ring is in a new epoch."""

    def has_room(self) -> bool:
        """Whether a record that is written now can be carried at once."""

    def submitted(self, index: int) -> None:
        """The submit record of that index, and its span, are written."""

    def ended(self, index: int) -> None:
        """The abort record of that index is written."""

    def await_records(self, timeout_s: float) -> float:
        """Bring token records. Returns for how many seconds more the library may wait for them to appear."""

    def taken(self, count: int) -> None:
        """So many of the records that were brought are read."""

    def close(self) -> None:
        """The ring is given up."""


class SharedMemory:
    """The transport where frontend and engine map the same memory: there is nothing to carry."""

    def claimed(self) -> None:
        """Seen by the engine."""

    def has_room(self) -> bool:
        """Always."""
        return True

    def submitted(self, index: int) -> None:
        """Seen by the engine."""

    def ended(self, index: int) -> None:
        """Seen by the engine."""

    def await_records(self, timeout_s: float) -> float:
        """The library sees them."""
        return timeout_s

    def taken(self, count: int) -> None:
        """Seen by the engine."""

    def close(self) -> None:
        """Seen by the engine."""


class FrontendRing:
    """A claimed ring. One thread may submit and abort while another waits; `close` once both are done."""

    def __init__(self, library: Path, memory: Path, ring: int = 0, transport: Transport | None = None) -> None:
        """Claim `ring` of the file `memory` through the ring library. Raises RingError.

        With a `transport` the memory is this side's copy of the engine's.
        """
        self.transport = transport or SharedMemory()
        self._library = _load(library)
        self._outstanding: dict[int, int] = {}
        self._submitted = self._ended = 0
        self._records = _aligned(_Record * _BATCH)
        self._record_bytes = memoryview(self._records).cast("B")
        self._tops = _aligned(_Tops * _BATCH)
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        self._handle = self._library.dp_ring_open(str(memory).encode(), ring, error, _ERROR_BYTES)
        if not self._handle:
            raise RingError(error.value.decode())
        self.transport.claimed()

    def submit(self, tag: int, prompt: Sequence[int], params: SamplingParams) -> bool:
        """Hand a request to the engine; False if the ring has no room now.

        `tag` names it in events, and is not in use. Raises ValueError for what the engine could not serve.
        """
        stops = params.stop_tokens
        for name in ("max_tokens", "min_tokens", "top_k", "logprobs", "prompt_logprobs", "priority"):
            if not 0 <= (getattr(params, name) or 0) <= _LARGEST:
                raise ValueError(f"{name} is {getattr(params, name)}; it has to be from 0 to {_LARGEST}")
        biases = sorted(params.logit_bias)
        try:
            words = array("i", (*stops, *(token for token, _ in biases)))
            words.frombytes(array("f", (bias for _, bias in biases)).tobytes())
            words.extend(prompt)
        except OverflowError as overflow:
            raise ValueError(
                "prompt, stop_tokens or logit_bias holds a number of more than 32 bits; ids are smaller"
            ) from overflow
        header = _Params(
            seed=params.seed % 2**64,
            prompt_tokens=len(prompt),
            stop_count=len(stops),
            bias_count=len(biases),
            max_tokens=params.max_tokens,
            min_tokens=params.min_tokens,
            priority=params.priority,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            temperature=params.temperature,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            logprobs=_encoded(params.logprobs),
            prompt_logprobs=_encoded(params.prompt_logprobs),
            sparse=params.sparse,
        )
        if not self.transport.has_room():
            return False
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        # Its end may be read by the waiting thread before this call returns.
        self._outstanding[tag] = self._submitted
        result = self._library.dp_ring_submit(
            self._handle, tag, ctypes.byref(header), words.buffer_info()[0], error, _ERROR_BYTES
        )
        if result <= 0:
            # The waiting thread may have ended it already, if the engine went away meanwhile.
            self._outstanding.pop(tag, None)
        if result < 0:
            raise ValueError(error.value.decode())
        if not result:
            return False
        index, self._submitted = self._submitted, (self._submitted + 1) % 2**32
        self.transport.submitted(index)
        return True

    def abort(self, tag: int) -> bool:
        """Ask the engine to end a request, which still ends with one event; False if the ring has no room now."""
        return self._end(tag, finished=False)

    def finish(self, tag: int) -> bool:
        """Like `abort` for a request that has all it needs, as at a stop string: its end is STOP."""
        return self._end(tag, finished=True)

    def wait(self, timeout_s: float) -> list[TokenEvent]:
        """Events in order; empty after `timeout_s` without one. Blocks without the GIL.

        When the engine is gone, every request that it left unfinished ends with ENGINE_GONE.
        """
        events = self._take(self.transport.await_records(timeout_s))
        self.transport.taken(len(events))
        if not events and self._outstanding and not self._library.dp_ring_engine_alive(self._handle):
            events = self._take(0) or [
                TokenEvent(tag, 0, -1, 0.0, Finish.ENGINE_GONE, 0, 0) for tag in tuple(self._outstanding)
            ]
        for event in events:
            if event.finish:
                self._outstanding.pop(event.tag, None)
        return events

    def status(self) -> Status:
        """What the engine last said, without blocking."""
        status = _Status()
        self._library.dp_ring_status(self._handle, ctypes.byref(status))
        alive = bool(self._library.dp_ring_engine_alive(self._handle))
        shown = dict(zip(_STATUS_NAMES, _STATUS.unpack_from(status), strict=True))
        ready, stopped = bool(shown.pop("ready")), bool(shown.pop("stopped"))
        return Status(**shown, ready=ready, stopped=stopped, alive=alive)

    def close(self) -> None:
        """Give up the ring; the engine ends what is left of its requests."""
        if self._handle:
            self._library.dp_ring_close(self._handle)
            self.transport.close()
            self._handle = None

    def _end(self, tag: int, *, finished: bool) -> bool:
        index = self._outstanding.get(tag)
        if index is None:
            return True
        if not self.transport.has_room() or not self._library.dp_ring_end(self._handle, index, finished):
            return False
        at, self._ended = self._ended, (self._ended + 1) % 2**32
        self.transport.ended(at)
        return True

    def _take(self, timeout_s: float) -> list[TokenEvent]:
        count = self._library.dp_ring_wait(self._handle, self._records, self._tops, _BATCH, int(timeout_s * 1e6))
        records = _TOKEN_RECORD.iter_unpack(self._record_bytes[: count * _TOKEN_RECORD.size])
        return [
            _event((
                tag, index, token, logprob, _FINISHES[finish], prompt_tokens, cached_tokens,
                self._top(i, top_count) if top_count else (), bool(of_prompt), sparse,
            ))
            for i, (tag, index, token, logprob, finish, prompt_tokens, cached_tokens, top_count, of_prompt, sparse, _)
            in enumerate(records)
        ]  # fmt: skip

    def _top(self, i: int, count: int) -> tuple[tuple[int, float], ...]:
        tops = self._tops[i]
        pairs = zip(tops.token[:count], tops.logprob[:count], strict=True)
        return tuple((token, logprob) for token, logprob in pairs if token >= 0)


def _encoded(logprobs: int | None) -> int:
    return 0 if logprobs is None else logprobs + 1


def _aligned(kind: type[Any]) -> Any:
    """A zeroed `kind` on a cache line, as the library's structs are; ctypes itself aligns to 16 bytes at most."""
    memory = ctypes.create_string_buffer(ctypes.sizeof(kind) + LINE)
    return kind.from_buffer(memory, -ctypes.addressof(memory) % LINE)


def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise RingError(f"{path}: cannot load the ring library: {error}; build the bundle again") from error
    handle, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    library.dp_ring_open.argtypes = (text, ctypes.c_uint32, text, size)
    library.dp_ring_open.restype = handle
    library.dp_ring_close.argtypes = (handle,)
    library.dp_ring_close.restype = None
    library.dp_ring_submit.argtypes = (handle, ctypes.c_uint64, handle, handle, text, size)
    library.dp_ring_end.argtypes = (handle, ctypes.c_uint32, ctypes.c_int)
    library.dp_ring_wait.argtypes = (handle, handle, handle, ctypes.c_int, ctypes.c_int64)
    library.dp_ring_status.argtypes = (handle, handle)
    library.dp_ring_status.restype = None
    library.dp_ring_engine_alive.argtypes = (handle,)
    return library
