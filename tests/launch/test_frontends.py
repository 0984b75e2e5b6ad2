"""Several frontends on one port, before the real engine of a toy model."""

import ctypes
import http.client
import json
import os
import queue
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dualpace import launch
from dualpace.build.bundle import build
from dualpace.build.store import Store
from dualpace.launch import ENGINE_STOP_SECONDS, FRONTEND_STOP_SECONDS, Appliance, LaunchError
from dualpace.plan.abi import fixed_view
from dualpace.plan.manifest import read_manifest
from dualpace.plan.resolve import resolve
from dualpace.plan.structs import LINE
from dualpace.spec.models import Spec
from tests.engine.compiled import Quiet

FRONTENDS = 3
SHAPE = {
    "family": "qwen3", "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 64, "intermediate": 96,
    "vocab": 300, "context": 4096,
}  # fmt: skip
SPEC = {
    "name": "toy",
    "model": {"shape": SHAPE, "dtype": "fp32", "weights": {"random": 3}},
    "scheduler": {"max_batch": 16, "prefill_chunk": 32},
    "nic": {"rings": FRONTENDS},
    "target": {"cpu": True, "kv_budget": "64MiB"},
    "serving": {"drain": "1s"},
}
BODY = {"model": "toy", "prompt": [5, 6, 7], "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path_factory.mktemp("frontends") / "bundle"
    store = Store(request.config.cache.mkdir("dualpace-store"))
    build(resolve(Spec.model_validate(SPEC), Path.cwd()), folder, store, Quiet())
    return folder


@pytest.fixture
def appliance(bundle: Path) -> Iterator[Appliance]:
    """Serves, and starts again what fails."""

    def wait() -> None:
        with pytest.raises(LaunchError, match=r"exit status 0"):
            appliance.wait(lambda line: None)

    with Appliance(bundle, read_manifest(bundle), "127.0.0.1", 0, threads=1, quiet=True) as appliance:
        appliance.start(lambda step: None)
        thread = threading.Thread(target=wait)
        thread.start()
        try:
            yield appliance
        finally:
            appliance._engine.process.terminate()
            thread.join()


def eventually(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not come about in time"
        time.sleep(0.02)


def frontends(appliance: Appliance) -> list[int]:
    """The process of each frontend; 0 while there is none."""
    return [child.process.pid if child.process else 0 for child in appliance._frontends]


def frontend_of(appliance: Appliance, client: socket.socket) -> int:
    """The process that has accepted the connection of `client`; 0 while none has."""
    ends = [":{1:04X}".format(*end) for end in (client.getpeername(), client.getsockname())]
    table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inode = next(row[9] for row in table if row[1].endswith(ends[0]) and row[2].endswith(ends[1]))
    for pid in filter(None, frontends(appliance)):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if str(descriptor.readlink()) == f"socket:[{inode}]":
                    return pid
            except FileNotFoundError:
                continue
    return 0


def connections(appliance: Appliance, stack: ExitStack) -> dict[int, http.client.HTTPConnection]:
    """A connection to each frontend, once all accept some, by process."""
    found: dict[int, http.client.HTTPConnection] = {}

    def is_found() -> bool:
        connection = http.client.HTTPConnection(*appliance.address, timeout=20)
        stack.callback(connection.close)
        connection.request("GET", "/health")
        connection.getresponse().read()
        found.setdefault(frontend_of(appliance, connection.sock), connection)
        return set(frontends(appliance)) <= set(found)

    eventually(is_found)
    return found


def status(appliance: Appliance) -> Any:
    """What the engine says of itself."""
    view = fixed_view("EngineStatus")
    with appliance._rings.open("rb") as rings:
        rings.seek(LINE)
        return view.from_buffer_copy(rings.read(ctypes.sizeof(view)))


def rows(appliance: Appliance) -> int:
    """Requests that the engine has, of whichever frontend."""
    engine = status(appliance)
    return engine.running + engine.waiting


def ask(connection: http.client.HTTPConnection, **fields: object) -> http.client.HTTPResponse:
    connection.request("POST", "/v1/completions", json.dumps(BODY | fields), {"Content-Type": "application/json"})
    return connection.getresponse()


def test_a_killed_frontend_leaves_no_rows_and_another_takes_its_place_beside_the_others(appliance: Appliance):
    with ExitStack() as stack:
        by_process = connections(appliance, stack)
        killed, *others = frontends(appliance)
        streams = {pid: ask(connection, max_tokens=4000, stream=True) for pid, connection in by_process.items()}
        for reply in streams.values():
            assert reply.status == 200
            assert reply.readline().startswith(b"data: ")
        assert rows(appliance) == FRONTENDS
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: rows(appliance) == FRONTENDS - 1, seconds=3)
        eventually(lambda: frontends(appliance)[0] not in (0, killed))
        assert frontends(appliance)[1:] == others
        whole = json.loads(ask(connections(appliance, stack)[frontends(appliance)[0]], max_tokens=3).read())
        assert whole["choices"][0]["finish_reason"] == "length"
        for pid in others:
            assert [streams[pid].readline()[:6] for _ in range(4)] == [b"\n", b"data: "] * 2
            by_process[pid].close()
        eventually(lambda: rows(appliance) == 0)


def test_a_frontend_that_hangs_is_ended_and_another_takes_its_place(
    appliance: Appliance, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(launch, "HUNG_LOOKS", 3)
    with ExitStack() as stack:
        by_process = connections(appliance, stack)
        hung, *others = frontends(appliance)
        streams = {pid: ask(connection, max_tokens=4000, stream=True) for pid, connection in by_process.items()}
        os.kill(hung, signal.SIGSTOP)
        eventually(lambda: frontends(appliance)[0] not in (0, hung))
        assert frontends(appliance)[1:] == others
        for pid in others:
            assert [streams[pid].readline()[:6] for _ in range(4)] == [b"data: ", b"\n"] * 2
        assert ask(connections(appliance, stack)[frontends(appliance)[0]], max_tokens=3).status == 200


def test_health_follows_the_engine_at_each_frontend(appliance: Appliance):
    def health(connection: http.client.HTTPConnection) -> int:
        connection.request("GET", "/health")
        reply = connection.getresponse()
        reply.read()
        return reply.status

    with ExitStack() as stack:
        by_process = connections(appliance, stack)
        assert {health(connection) for connection in by_process.values()} == {200}
        engine = appliance._engine.process.pid
        os.kill(engine, signal.SIGSTOP)
        stalled = time.monotonic()
        for connection in by_process.values():
            eventually(lambda probed=connection: health(probed) == 503)
        assert time.monotonic() - stalled < 2
        os.kill(engine, signal.SIGCONT)
        for connection in by_process.values():
            eventually(lambda probed=connection: health(probed) == 200, seconds=2)


def test_a_killed_engine_ends_the_streams_of_each_frontend_and_another_takes_its_place(appliance: Appliance):
    with ExitStack() as stack:
        by_process = connections(appliance, stack)
        streams = [ask(connection, max_tokens=4000, stream=True) for connection in by_process.values()]
        for reply in streams:
            reply.readline()
        appliance._engine.process.kill()
        for reply in streams:
            *_, error, done = reply.read().decode().strip().split("\n\n")
            assert "the engine has stopped" in json.loads(error.removeprefix("data: "))["error"]["message"]
            assert done == "data: [DONE]"
        for connection in by_process.values():

            def is_served(probed: http.client.HTTPConnection = connection) -> bool:
                reply = ask(probed, max_tokens=3)
                reply.read()
                assert reply.status in (200, 503)
                return reply.status == 200

            eventually(is_served)


def generated(connection: http.client.HTTPConnection) -> float:
    """The tokens that all frontends have passed on, as one of them says."""
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    [line] = (line for line in text.splitlines() if line.startswith("dualpace_generated_tokens_total{"))
    return float(line.rpartition(" ")[2])


def test_metrics_are_of_all_frontends_and_outlive_each(appliance: Appliance):
    with ExitStack() as stack:
        by_process = connections(appliance, stack)
        for tokens, connection in enumerate(by_process.values(), 5):
            ask(connection, max_tokens=tokens).read()
        told = {generated(connection) for connection in by_process.values()}
        assert told == {5 + 6 + 7}
        killed = frontends(appliance)[0]
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: frontends(appliance)[0] not in (0, killed))
        again = connections(appliance, stack)
        ask(again[frontends(appliance)[0]], max_tokens=2).read()
        assert {generated(connection) for connection in again.values()} == {5 + 6 + 7 + 2}


def test_a_client_that_leaves_frees_its_pages_within_a_step_and_disturbs_no_other(appliance: Appliance):
    with ExitStack() as stack:
        leaves, stays = list(connections(appliance, stack).values())[:2]
        free = status(appliance).free_pages
        other = ask(stays, max_tokens=4000, stream=True)
        gone = ask(leaves, prompt=[5] * 400, n=8, max_tokens=2000, stream=True)
        assert [gone.readline()[:6] for _ in range(4)] == [b"data: ", b"\n"] * 2
        assert rows(appliance) == 9
        gone.close()
        leaves.close()
        page = read_manifest(appliance._bundle).plan.attention.page_size
        held = 4003 // page + 1  # what the other one holds at most
        deadline = time.monotonic() + 20
        while (seen := status(appliance)).counters.aborted < 8:
            assert time.monotonic() < deadline
        step = seen.steps
        # Words of a status may be of neighbouring steps.
        while seen.steps <= step + 1 and (seen.running > 1 or free - seen.free_pages > held):
            seen = status(appliance)
        assert (seen.running, seen.counters.aborted) == (1, 8)
        assert free - seen.free_pages <= held
        assert other.readline().startswith(b"data: ")


def test_a_client_that_reads_nothing_is_ended_alone(appliance: Appliance):
    with ExitStack() as stack:
        other = next(iter(connections(appliance, stack).values()))
        client = stack.enter_context(socket.socket())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(appliance.address)
        body = json.dumps(BODY | {"n": 8, "max_tokens": 4000, "stream": True, "logprobs": 20}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        eventually(lambda: rows(appliance) == 8)
        whole = json.loads(ask(other, max_tokens=500).read())
        assert whole["usage"]["completion_tokens"] == 500
        eventually(lambda: rows(appliance) == 0, seconds=60)
        counters = status(appliance).counters
        assert (counters.aborted, counters.finished) == (8, 1)


def test_health_answers_at_each_frontend_beside_1280_requests_at_once(appliance: Appliance):
    body = json.dumps(BODY | {"max_tokens": 20}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def seconds() -> float:
        """Of CPU that the frontends have had: a machine that does other work makes all of this slower."""
        spent = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in frontends(appliance)]
        return sum(int(ticks) for stat in spent for ticks in stat[11:13]) / os.sysconf("SC_CLK_TCK")

    with ExitStack() as stack:
        by_process = connections(appliance, stack)
        clients = [stack.enter_context(socket.create_connection(appliance.address)) for _ in range(1280)]
        for client in clients:
            client.sendall(request)
        begun = seconds()
        for connection in by_process.values():
            connection.request("GET", "/health")
        for connection in by_process.values():
            reply = connection.getresponse()
            assert (reply.status, reply.read()[:14]) == (200, b'{"status":"ok"')
        assert seconds() - begun < 2 * FRONTENDS
        answers = Counter(client.makefile("rb").readline().split()[1] for client in clients)
    assert set(answers) <= {b"200", b"429"}
    assert answers[b"200"] >= 16


def test_the_end_lets_each_frontend_drain_within_its_limit(bundle: Path):
    started: queue.SimpleQueue[Appliance] = queue.SimpleQueue()
    end = threading.Event()

    def serve() -> None:
        with Appliance(bundle, read_manifest(bundle), "127.0.0.1", 0, threads=1, quiet=True) as appliance:
            appliance.start(lambda step: None)
            started.put(appliance)
            end.wait()

    served = threading.Thread(target=serve)
    served.start()
    with ExitStack() as stack:
        by_process = connections(started.get(timeout=60), stack)
        streams = [ask(connection, max_tokens=4000, stream=True) for connection in by_process.values()]
        for reply in streams:
            assert reply.readline().startswith(b"data: ")
        begun = time.monotonic()
        end.set()
        for reply in streams:
            *_, last, done = reply.read().decode().strip().split("\n\n")
            event = json.loads(last.removeprefix("data: "))
            assert "shutting down" in event["error"]["message"] if "error" in event else event["choices"]
            assert done == "data: [DONE]"
        served.join()
        assert time.monotonic() - begun < 1 + FRONTEND_STOP_SECONDS + ENGINE_STOP_SECONDS
    assert not any(Path(f"/proc/{pid}").exists() for pid in by_process)
