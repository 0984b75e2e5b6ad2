"""HTTP through the whole line: a frontend on one device, an engine on the other, as processes that a user starts."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from benchmarks import replay
from tests.appliance.bundles import tokenizer
from tests.rdma import prepared

from .conftest import PREPARED

PORT = 8123
# The engine's libraries are read over the emulated machine's file system.
SECONDS = 900


class Process:
    """A process whose lines on stderr are kept."""

    def __init__(self, *command):
        self.process = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True)
        self.said = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        self.said.extend(iter(self.process.stderr.readline, ""))

    def wait_for(self, pattern):
        end = time.monotonic() + SECONDS
        while not any(re.search(pattern, line) for line in self.said):
            assert self.process.poll() is None, "".join(self.said)
            assert time.monotonic() < end, "".join(self.said)
            time.sleep(0.1)

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def running(*command):
    process = Process(*command)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()


def replay_engine():
    bundle, library = PREPARED / prepared.BUNDLE, PREPARED / prepared.REPLAY
    options = ("--rings", "/dev/shm/replayed", "--library", str(library), "--step-ms", "20")
    return running("-m", "benchmarks.replay", str(bundle), *options)


def frontend():
    gate = f"127.0.0.1:{prepared.GATE_PORT}"
    options = {"--connect": gate, "--device": "rxe1", "--gid-index": "1", "--port": str(PORT)}
    options |= {"--key-file": str(PREPARED / prepared.KEY), "--ca": str(PREPARED / prepared.CERTIFICATE)}
    return running("-m", "dualpace.cli", "frontend", *(word for pair in options.items() for word in pair))


def ask(method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=SECONDS)
    try:
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def wait_for(done):
    end = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < end
        time.sleep(0.1)


def wait_until_healthy():
    end = time.monotonic() + SECONDS
    while True:
        try:
            status, text = ask("GET", "/health")
        except OSError as error:
            status, text = 0, str(error)
        if status == 200:
            return
        assert time.monotonic() < end, text
        time.sleep(0.2)


def complete(**fields):
    body = {"model": "toy", "prompt": prepared.PROMPT, "max_tokens": prepared.TOKENS, "ignore_eos": True} | fields
    return ask("POST", "/v1/completions", body)


def metric(name):
    _, text = ask("GET", "/metrics")
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name}{{"))


@pytest.mark.timeout(1500)
def test_a_frontend_serves_what_one_engine_replays_and_once_it_was_killed_what_another_computes():
    """The replay engine's text is that of its script; the CPU engine's, over the same bundle, is the reference's."""
    bundle = PREPARED / prepared.BUNDLE
    with frontend() as front:
        # It may come first.
        front.wait_for("trying on")
        with replay_engine() as engine:
            front.wait_for("serving toy")
            wait_until_healthy()
            status, text = complete(stream=True, max_tokens=8)
            events = [line for line in text.splitlines() if line.startswith("data: ")]
            assert (status, events[-1]) == (200, "data: [DONE]")
            said = "".join(json.loads(event[6:])["choices"][0]["text"] for event in events[:-1])
            ids = tokenizer().encode(replay.TEXT, add_special_tokens=False).ids
            assert said == tokenizer().decode(ids[:8])
            assert metric("dualpace_rdma_operations_total") > 10
            assert metric("dualpace_rdma_faults_total") == 0
            answers = []
            before = metric("dualpace_sampled_tokens_total")
            asked = threading.Thread(target=lambda: answers.append(complete(max_tokens=200)))
            asked.start()
            wait_for(lambda: metric("dualpace_sampled_tokens_total") > before)
            engine.end(signal.SIGKILL)
        asked.join(60)
        ((status, text),) = answers
        assert status in (500, 503)
        assert "error" in json.loads(text)
        with running("-m", "dualpace.cli", "serve", str(bundle)) as served:
            served.wait_for(f"ready, frontends come in at 127.0.0.1:{prepared.GATE_PORT}")
            wait_until_healthy()
            status, text = complete(temperature=0)
            assert status == 200, text
            answer = json.loads(text)
            assert answer["choices"][0]["text"] == (PREPARED / prepared.CONTINUATION).read_text()
            assert answer["usage"]["prompt_tokens"] == len(prepared.PROMPT)
            assert metric("dualpace_rdma_connections_total") == 2
            failures = metric("dualpace_rdma_failures_total")
            assert failures >= 1
            assert metric("dualpace_rdma_attempts_total") == 1 + 2 + failures  # for the bundle, and for two rings
            assert metric("dualpace_rdma_faults_total") == 1
            assert served.end() == 0
        # Who takes the engine's place and says nothing does not hold up the frontend's end.
        with socket.create_server(("127.0.0.1", prepared.GATE_PORT)) as silent, silent.accept()[0]:
            assert front.end() == 0
