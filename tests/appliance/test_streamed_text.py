"""A streamed text is the unstreamed one, however its characters are cut into tokens and its tokens into batches."""

import asyncio
import json
import random
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from dualpace.appliance.deployment import Deployment, load
from dualpace.appliance.dispatch import Dispatcher
from dualpace.appliance.generate import Generation
from dualpace.appliance.protocol import PIPE
from dualpace.appliance.reply import CompletionReply
from dualpace.appliance.spouts import Spouts
from dualpace.appliance.stream import EventStream, Whole
from dualpace.appliance.tally import Tally
from dualpace.appliance.validate import Job
from dualpace.engine.ring import Finish, SamplingParams, TokenEvent
from dualpace.plan.manifest import TOKENIZER

from .bundles import write_bundle
from .fake_ring import FakeRing

SEQUENCES = 10_000
CHARACTERS = "aé語🙂 "
# Each way to cut a character of so many bytes in two, by the bytes before the cut.
CUTS = {(size, at) for size in (2, 3, 4) for at in range(1, size)}


def deployment_of_pieces(folder: Path) -> tuple[Deployment, dict[bytes, int]]:
    """A deployment whose vocabulary is the bytes of UTF-8 and all runs of bytes in CHARACTERS, and their ids."""
    letters = _letters()
    text = CHARACTERS.encode()
    runs = {text[begin:end] for begin in range(len(text)) for end in range(begin + 2, len(text) + 1)}
    ids = {piece: at for at, piece in enumerate([*(bytes([byte]) for byte in sorted(letters)), *sorted(runs)])}
    vocab = {"".join(letters[byte] for byte in piece): token for piece, token in ids.items()}
    made = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.decoder = decoders.ByteLevel()
    bundle = write_bundle(folder)
    made.save(str(bundle / TOKENIZER))
    return load(bundle), ids


def _letters() -> dict[int, str]:
    """What byte-level BPE writes for each byte that a character can have."""
    written = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    codes = (*range(0x800), *range(0x800, 0xD800, 0x800), *range(0xE000, 0x110000, 0x800))
    letters: dict[int, str] = {}
    for character in map(chr, codes):
        [(piece, _)] = written.pre_tokenize_str(character)
        letters.update(zip(character.encode(), piece, strict=True))
    return letters


@dataclass
class Case:
    """Tokens by what they add to the text, stop strings, the sizes of batches, and why the engine ends."""

    pieces: list[bytes]
    stops: tuple[str, ...]
    batches: list[int]
    finish: Finish

    @property
    def text(self) -> str:
        """Of all tokens but one that ends it."""
        return b"".join(self.pieces[: -1 if self.finish is Finish.STOP else None]).decode(errors="replace")

    def stop(self) -> tuple[int, int] | None:
        """Where the stop string that ends the text begins and ends: the first to end, of several the longest."""
        found = [(at + len(stop), at) for stop in self.stops if (at := self.text.find(stop)) >= 0]
        end, begin = min(found, default=(0, 0))
        return (begin, end) if end else None

    def expected(self) -> tuple[str, str]:
        """Text and finish reason, from all of the text at once."""
        if stop := self.stop():
            return self.text[: stop[0]], "stop"
        return self.text, "stop" if self.finish is Finish.STOP else "length"


def drawn(dice: random.Random, pieces: Mapping[int, Sequence[bytes]]) -> Case:
    """A case of `pieces`, by their first byte: mostly characters, with stop strings that mostly are in the text."""
    text = "".join(dice.choices(CHARACTERS, k=dice.randrange(1, 12))).encode()
    tokens = []
    while text:
        tokens.append(dice.choice([piece for piece in pieces[text[0]] if text.startswith(piece)]))
        text = text[len(tokens[-1]) :]
    for _ in range(dice.choice([0, 0, 1, 3])):
        tokens.insert(dice.randrange(len(tokens) + 1), dice.choice(pieces[dice.choice(list(pieces))]))
    whole = b"".join(tokens).decode(errors="replace")
    stops = set()
    for _ in range(dice.choice([0, 1, 2, 4])):
        begin = dice.randrange(len(whole))
        stops.add(whole[begin : begin + dice.randrange(1, 6)] + dice.choice(["", "", "é", "x"]))
    sizes, left = [], len(tokens)
    while left:
        sizes.append(dice.randrange(1, left + 1) if dice.random() < 0.5 else 1)
        left -= sizes[-1]
    return Case(tokens, tuple(stops), sizes, dice.choice([Finish.LENGTH, Finish.STOP]))


@dataclass
class Taps:
    """A pipe that is open when `dice` says so, what has come through it or around it, or past it from a spout."""

    dice: random.Random
    bodies: list[bytes] = field(default_factory=list)
    through: int = 0
    around: int = 0
    past: int = 0
    stop: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.spout, self.end = socket.socketpair()
        self.end.setblocking(False)

    @property
    def socket(self) -> int:
        return self.spout.fileno() if self.dice.random() < 0.7 else -1

    def drain(self) -> None:
        """Take what a spout has sent, in chunks of HTTP."""
        with suppress(BlockingIOError):
            chunks = self.end.recv(1 << 20)
            while chunks:
                size, _, rest = chunks.partition(b"\r\n")
                self.bodies.append(rest[: int(size, 16)])
                self.past += 1
                assert rest[int(size, 16) :].startswith(b"\r\n")
                chunks = rest[int(size, 16) + 2 :]

    def close(self) -> None:
        self.spout.close()
        self.end.close()

    @property
    def is_open(self) -> bool:
        return self.dice.random() < 0.7

    def write(self, piece: bytes) -> None:
        self.drain()
        self.bodies.append(piece)
        self.through += 1

    async def send(self, message: dict[str, Any]) -> None:
        self.drain()
        self.bodies.append(message.get("body", b""))
        self.around += b"choices" in self.bodies[-1]


async def answered(
    deployment: Deployment, spouts: Spouts, ids: dict[bytes, int], case: Case, taps: Taps | None
) -> list[Any]:
    """The JSON of the answer to a request for which the engine generates the tokens of `case`; streamed by `taps`."""
    dispatcher = Dispatcher(FakeRing(held=True), deployment.plan.schedule, spouts=spouts)
    params = SamplingParams(max_tokens=len(case.pieces))
    job = Job(choices=(([0], params),), n=1, stops=case.stops, prefixes=("",), continues=True)
    kept = taps or Taps(random.Random(0))

    async def receive() -> dict[str, Any]:
        return await asyncio.Future()

    generation = Generation(dispatcher, deployment, job, 0.0)
    answer = (EventStream if taps else Whole)(generation, CompletionReply(deployment, with_usage=False))
    running = asyncio.create_task(answer({"type": "http", PIPE: kept}, receive, kept.send))
    await asyncio.sleep(0)
    last = len(case.pieces) - 1
    events = [
        TokenEvent(1, at, ids[piece], 0.0, case.finish if at == last else Finish.NONE, 1, 0)
        for at, piece in enumerate(case.pieces)
    ]
    for begin, end in pairwise(accumulate(case.batches, initial=0)):
        dispatcher._deliver(events[begin:end])
        for _ in range(3):
            await asyncio.sleep(0)
    await running
    assert not spouts.tags
    whole = b"".join(kept.bodies)
    if taps is None:
        return [json.loads(whole)]
    *chunks, done, rest = whole.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]


def cuts_of(case: Case) -> set[tuple[int, int]]:
    """Where tokens of the case cut a whole character: its bytes, and those before the cut."""
    whole, found, at = b"".join(case.pieces), set(), 0
    ends = set(accumulate(map(len, case.pieces)))
    for character in whole.decode(errors="ignore"):
        size = len(character.encode())
        at = whole.index(character.encode(), at)
        found |= {(size, end - at) for end in ends if at < end < at + size}
        at += size
    return found


def crosses(case: Case) -> bool:
    """Whether the text is ended by a stop string that more than one token has written."""
    stop = case.stop()
    if stop is None or "\ufffd" in case.text:
        return False
    begin, end = (len(case.text[:at].encode()) for at in stop)
    return any(begin < edge < end for edge in accumulate(map(len, case.pieces)))


def test_streamed_text_is_the_unstreamed_text(tmp_path: Path, library: Path):
    deployment, ids = deployment_of_pieces(tmp_path / "bundle")
    assert all(deployment.tokenizer.token_bytes(token) == piece for piece, token in ids.items())
    dice = random.Random(7)
    pieces: dict[int, list[bytes]] = {}
    for piece in ids:
        pieces.setdefault(piece[0], []).append(piece)
    cases = [drawn(dice, pieces) for _ in range(SEQUENCES)]
    assert set().union(*map(cuts_of, cases)) >= CUTS
    assert sum(map(crosses, cases)) > SEQUENCES / 20

    ways: Counter[str] = Counter()
    spouts = Spouts(library, Tally())

    async def all_of_them() -> None:
        for case in cases:
            [whole] = await answered(deployment, spouts, ids, case, None)
            with closing(Taps(dice)) as taps:
                chunks = [chunk["choices"][0] for chunk in await answered(deployment, spouts, ids, case, taps)]
            ways.update(through=taps.through, around=taps.around, past=taps.past)
            [unstreamed] = whole["choices"]
            assert (unstreamed["text"], unstreamed["finish_reason"]) == case.expected(), case
            assert "".join(chunk["text"] for chunk in chunks) == unstreamed["text"], case
            assert [chunk["finish_reason"] for chunk in chunks if chunk["finish_reason"]] == [
                unstreamed["finish_reason"]
            ], case

    asyncio.run(all_of_them())
    assert min(ways["through"], ways["around"]) > SEQUENCES / 2
    assert ways["past"] > SEQUENCES / 50
