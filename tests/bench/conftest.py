import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dualpace.bench.load import Load
from dualpace.bench.offer import offer
from dualpace.bench.result import Run

ROOT = Path(__file__).parents[2]


@dataclass
class Scripted:
    """The scripted server, and how to put a load on it."""

    process: subprocess.Popen[str]
    url: str

    def load(self, script: dict, **fields: object) -> Load:
        return Load.model_validate({"url": self.url, "model": "scripted", "body": {"script": script}} | fields)

    def offer(self, script: dict, **fields: object) -> Run:
        self.log()
        return offer(self.load(script, **fields), "")

    def log(self) -> list[list[float]]:
        with urllib.request.urlopen(f"{self.url}/log", timeout=10) as response:
            return json.load(response)


@contextmanager
def scripted(*files: object) -> Iterator[Scripted]:
    """With a certificate and its key it speaks HTTPS."""
    command = [sys.executable, "-m", "tests.bench.scripted_server", *map(str, files)]
    scheme = "https" if files else "http"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout
        try:
            yield Scripted(process, f"{scheme}://127.0.0.1:{process.stdout.readline().strip()}")
        finally:
            process.kill()


@pytest.fixture(scope="session")
def server() -> Iterator[Scripted]:
    with scripted() as server:
        yield server
