"""`dualpace serve` as a process."""

import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

START_SECONDS = 60


@dataclass
class Served:
    """A `dualpace serve` that is ready; `said` is what it and its processes have written, line by line."""

    process: subprocess.Popen[str]
    url: str
    said: list[str]


@contextmanager
def serving(bundle: Path) -> Iterator[Served]:
    """Serve `bundle` on a free port until the block ends."""
    command = [sys.executable, "-m", "dualpace.cli", "serve", str(bundle), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        lines = process.stderr
        said: list[str] = []

        def listen() -> None:
            for line in lines:
                said.append(line)

        # What is written later is read too: a pipe that fills up would stop whoever writes into it.
        rest = threading.Thread(target=listen)
        try:
            for line in lines:
                said.append(line)
                if match := re.search(r"ready at (http://\S+),", line):
                    rest.start()
                    yield Served(process, match[1], said)
                    break
            else:
                raise AssertionError("serve ended early:\n" + "".join(said))
        finally:
            process.terminate()
            if rest.ident:
                rest.join()


def engine_of(parent: int) -> int:
    """The engine's process among the children of `parent`."""
    children = (
        child for task in Path(f"/proc/{parent}/task").iterdir() for child in (task / "children").read_text().split()
    )
    return next(int(pid) for pid in children if b"dualpace.engine\0" in Path(f"/proc/{pid}/cmdline").read_bytes())


def wait_until_healthy(url: str) -> None:
    """Wait until a request would be taken at `url`."""
    deadline = time.monotonic() + START_SECONDS
    while not _healthy(url):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health") as response:
            return bool(response.status == HTTPStatus.OK)
    except urllib.error.URLError:
        return False
