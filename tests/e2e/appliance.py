"""`dualpace serve` as a process, and what it runs from this one."""

import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import pytest

from dualpace import launch
from dualpace.plan.manifest import read_manifest

START_SECONDS = 60


@dataclass
class Served:
    process: subprocess.Popen[str]
    url: str


@contextmanager
def serving(bundle: Path) -> Iterator[Served]:
    """Serve `bundle` on a free port until the block ends."""
    command = [sys.executable, "-m", "dualpace.cli", "serve", str(bundle), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        lines = process.stderr
        # What is logged later is read too: a pipe that fills up would stop whoever writes into it.
        rest = threading.Thread(target=deque, args=(lines, 0))
        try:
            seen = []
            for line in lines:
                seen.append(line)
                if match := re.search(r"ready at (http://\S+),", line):
                    rest.start()
                    yield Served(process, match[1])
                    break
            else:
                raise AssertionError("serve ended early:\n" + "".join(seen))
        finally:
            process.terminate()
            if rest.ident:
                rest.join()


@contextmanager
def restarting(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[launch.Appliance, list[str]]]:
    """Serve `bundle` from this process, its engine started again however soon it fails, and what is said of that."""
    monkeypatch.setattr(launch, "RESTART_SECONDS", 0.0)
    said: list[str] = []
    ending = threading.Event()

    def wait() -> None:
        try:
            appliance.wait(said.append)
        except launch.LaunchError:
            if not ending.is_set():
                raise

    with launch.Appliance(bundle, read_manifest(bundle), "127.0.0.1", 0, quiet=True) as appliance:
        appliance.start(lambda step: None)
        threading.Thread(target=wait, daemon=True).start()
        yield appliance, said
        ending.set()


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
