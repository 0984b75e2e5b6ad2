"""Libraries that the frontend could be made of, by the CPU time that they take for what it does.

    python -m benchmarks.frontend_libraries [--built FOLDER] [-o benchmarks/results/frontend_libraries.json]

Needs granian, orjson and msgspec beside what `make test` installs. Times are the least of several runs, on any machine.
Servers are measured with the whole frontend between the replay engine and the load client, by `benchmarks.frontend`;
bounds on connections, and tokens that go straight to theirs, are there only with uvicorn and httptools.
"""

import argparse
import json
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import orjson
from pydantic_core import to_json
from tokenizers import Tokenizer as Library
from tokenizers.decoders import DecodeStream

from benchmarks.frontend import PROMPT_TOKENS, Bench, build, short_requests, streams
from benchmarks.machine import host_machine, save
from benchmarks.pages import RESULTS
from dualpace.appliance.deployment import load
from dualpace.appliance.generate import Delta
from dualpace.appliance.reply import QUOTED, CompletionReply
from dualpace.appliance.responses import Completion, CompletionChoice
from dualpace.model.tokenizer import Detokenizer
from dualpace.plan.manifest import TOKENIZER

REPEATS = 15
ROUNDS = 2
_CONFIGURED = """
import uvicorn
made = uvicorn.Config
uvicorn.Config = lambda app, **options: made(app, **options | {change})
"""
_GRANIAN = """
import asyncio, granian, uvloop, uvicorn
from granian.constants import HTTPModes, Interfaces
from granian.server.embed import Server

async def serve(server, host, port):
    serving = Server(
        server.config.app, host, port, interface=Interfaces.ASGI, http=HTTPModes.http1, backlog=2048, log_enabled=False
    )
    task = asyncio.create_task(serving.serve())
    await asyncio.sleep(1)
    server._port_file.write_text(f"{port}\\n")
    await task

def run(server, sockets):
    address = sockets[0].getsockname()
    sockets[0].close()
    uvloop.run(serve(server, *address))

uvicorn.Server.run = run
"""
# What is run before the frontend is.
SERVERS = {
    "uvicorn, httptools, uvloop": "",
    "uvicorn, httptools, asyncio": _CONFIGURED.format(change={"loop": "asyncio"}),
    "uvicorn, h11, uvloop": _CONFIGURED.format(change={"http": "h11"}),
    "granian, uvloop": _GRANIAN,
}
_SERVED = """
import sys
from dualpace.appliance import server
sys.exit(server.main())
"""


class Choice(msgspec.Struct):
    """As msgspec would have it."""

    index: int
    text: str
    finish_reason: str | None


class Chunk(msgspec.Struct):
    """Likewise."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    object: str
    choices: list[Choice]


def least_us(work: Callable[[], Any], count: int) -> float:
    """Microseconds of the quickest run of `work`."""
    return round(min(timeit.repeat(work, number=count, repeat=REPEATS)) / count * 1e6, 2)


def chunks(bench: Bench) -> dict[str, float]:
    """A chunk of a stream with a word in it."""
    head = {
        "id": f"cmpl-{'0' * 24}", "created": 1_800_000_000, "model": "frontend",
        "system_fingerprint": "fp_0123456789ab", "object": "text_completion",
    }  # fmt: skip
    choice = {"index": 0, "text": " quick", "finish_reason": None}
    struct = msgspec.json.Encoder()
    reply = CompletionReply(load(bench.bundle), with_usage=False)
    delta = Delta(0, " quick", None)
    before, after = reply.frame(0)

    def models() -> str:
        return Completion(**head, choices=[CompletionChoice(**choice)]).model_dump_json(exclude_unset=True)

    ways: dict[str, Callable[[], Any]] = {
        "json": lambda: json.dumps(head | {"choices": [choice]}),
        "pydantic, its models": models,
        "pydantic_core, of a dict": lambda: to_json(head | {"choices": [choice]}),
        "msgspec, its structs": lambda: struct.encode(Chunk(**head, choices=[Choice(**choice)])),
        "orjson, of a dict": lambda: orjson.dumps(head | {"choices": [choice]}),
        "pydantic_core, of the text alone": lambda: reply.chunk(delta),
        "none, for a piece of the vocabulary": lambda: b"%b%b%b" % (before, QUOTED[" quick"], after),
    }
    return {name: least_us(work, 5000) for name, work in ways.items()}


def detokenisers(bench: Bench) -> dict[str, float]:
    """The text of one more token of a stream."""
    library = Library.from_file(str(bench.bundle / TOKENIZER))
    token = bench.script[5]
    own, stream = Detokenizer(bench.tokenizer), DecodeStream(skip_special_tokens=True)
    last = bench.script[:8]
    return {
        "tokenizers, the last 8 tokens twice": least_us(
            lambda: (library.decode(last), library.decode(last[:-1])), 1000
        ),
        "tokenizers, DecodeStream": least_us(lambda: stream.step(library, token), 1000),
        "ours": least_us(lambda: own.push(token), 5000),
    }


def tokenisers(bench: Bench) -> dict[str, float]:
    """A text of 1,000 tokens."""
    library = Library.from_file(str(bench.bundle / TOKENIZER))
    text = bench.tokenizer.decode((bench.script * PROMPT_TOKENS)[:PROMPT_TOKENS])
    return {
        "tokenizers, encode": least_us(lambda: library.encode(text, add_special_tokens=False).ids, 10),
        "tokenizers, encode_batch_fast": least_us(
            lambda: library.encode_batch_fast([text], add_special_tokens=False)[0].ids, 10
        ),
    }


def servers(built: Path, folder: Path) -> dict[str, dict[str, float]]:
    """CPU time of one streamed token, and of one short request."""
    found: dict[str, dict[str, float]] = {}
    for name, change in SERVERS.items():
        command = (sys.executable, "-c", change + _SERVED)
        bench = Bench(built, folder, command)
        found[name] = {
            "token_us": min(streams(bench, 1)["cpu_us_per_token"] for _ in range(ROUNDS)),
            "request_us": min(short_requests(bench, 1)["cpu_us_per_request"] for _ in range(ROUNDS)),
        }
        print(name, found[name], flush=True)
    return found


def main() -> None:
    """Measure, print, and write what was printed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", type=Path, default=RESULTS / "frontend_libraries.json", metavar="FILE")
    parser.add_argument("--built", type=Path, metavar="FOLDER", help="what `benchmarks.frontend --build` made there")
    given = parser.parse_args()
    machine = host_machine("granian", "msgspec", "orjson", "pydantic", "pydantic_core", "tokenizers", "uvicorn")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        if not given.built:
            build(folder)
        bench = Bench(given.built or folder, folder)
        report: dict[str, Any] = {"machine": machine}
        measures = {"chunk_us": chunks, "detokenise_us": detokenisers, "tokenise_us": tokenisers}
        for what, measure in measures.items():
            report[what] = measure(bench)
            print(what, report[what], flush=True)
        report["servers"] = servers(given.built or folder, folder)
    save(report, given.o)


if __name__ == "__main__":
    main()
