"""The process that offers a load: reads it from stdin, writes how it goes and at last the run, a JSON object a line.

python -m dualpace.bench.worker <load.json
"""

import asyncio
import gc
import json
import os
import resource
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop

from dualpace.bench.alarm import Ticker
from dualpace.bench.answer import Answer
from dualpace.bench.client import Client
from dualpace.bench.drive import Driver
from dualpace.bench.each import append
from dualpace.bench.energy import Meter
from dualpace.bench.figures import Ending, run_of
from dualpace.bench.lengths import WorkloadError
from dualpace.bench.load import Load
from dualpace.bench.record import Record
from dualpace.bench.result import Run
from dualpace.bench.workload import Workload

# The loop looks at the clock so often; what it sees late, it has seen of answers as late.
TICK_S = 0.005
PROGRESS_S = 0.5
# A stream of so many times the pieces that tokens were asked for, and some more, will not end: the server pays no heed.
ENDLESS, SOME_MORE = 16, 1000
# From the first line to the first request: bodies are made, and closed loops start at once.
LEAD_S = 0.05
PATHS = {"completions": "/completions", "chat": "/chat/completions"}


async def offer(load: Load, key: str, each: Path | None) -> Run:
    """Offer the load and wait for all answers; `each` gets a line a request. Raises WorkloadError and OSError."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    record = Record(time.monotonic() + LEAD_S, load.warm_up)
    meter = Meter(load.url)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_crash)
    idle = asyncio.Event()

    def ended(answer: Answer) -> None:
        driver.answered(answer.end)
        record.add(answer)
        if not client.active:
            idle.set()

    client = Client(load.url, PATHS[load.api], key, ended, load.certificate)
    workload = Workload(load)
    driver = Driver(load, iter(workload), client, record.start, record.sent)
    gc.collect()
    gc.freeze()
    record.start = driver.start = time.monotonic() + LEAD_S
    ticker = Ticker(loop, TICK_S, record.seen)
    watch = loop.create_task(_watch(load, client, driver, record))
    # Without it nobody gives up what is silent: its failure is one of the loop's.
    watch.add_done_callback(lambda ended: ended.cancelled() or ended.result())
    await asyncio.sleep(LEAD_S)
    before = _cpu_seconds(), time.monotonic()
    loop.call_later(load.warm_up, meter.begin)
    if load.duration:
        loop.call_later(load.duration, meter.end)
    await driver.run()
    while client.active:
        idle.clear()
        await idle.wait()
    meter.end()
    cpu = (_cpu_seconds() - before[0]) / (time.monotonic() - before[1])
    ticker.close()
    watch.cancel()
    client.close()
    if each:
        append(each, load, record)
    return run_of(load, started, record, Ending(driver.by_time, cpu, meter.joules, workload.left_out))


async def _watch(load: Load, client: Client, driver: Driver, record: Record) -> None:
    """Tell how it goes, and give up what is silent for too long or does not end."""
    while True:
        await asyncio.sleep(PROGRESS_S)
        now = time.monotonic()
        for answer in list(client.active):
            heard = answer.arrivals[-1] if answer.arrivals else answer.sent
            if now - heard > load.timeout:
                client.give_up(answer, f"timeout: silent for {load.timeout:g} s")
            elif len(answer.arrivals) > ENDLESS * answer.asked + SOME_MORE:
                client.give_up(answer, "stream: without end")
        _write(progress={
            "elapsed": now - record.start, "sent": driver.issued, "active": len(client.active), "ended": len(record),
            "failed": record.failed, "pieces": record.pieces + sum(len(answer.arrivals) for answer in client.active),
        })  # fmt: skip


def _crash(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A fault of the load generator ends it: a run that goes on without a part of its load would be believed."""
    loop.default_exception_handler(context)
    os._exit(1)


def _write(**line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Read the load, the key and where each request goes, offer it, write the run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for whoever started this, which then ends it
    told = json.loads(sys.stdin.readline())
    load = Load.model_validate(told["load"])
    if load.cpus:
        os.sched_setaffinity(0, load.cpus)
    try:
        run = uvloop.run(offer(load, told["key"], Path(told["each"]) if told["each"] else None))
    except (WorkloadError, OSError) as error:
        _write(error=str(error))
        return
    _write(run=run.model_dump(mode="json"))


if __name__ == "__main__":
    main()
