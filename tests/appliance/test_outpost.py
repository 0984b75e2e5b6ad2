"""A frontend on another host, as far as that needs no adapter: what it takes, and what it counts."""

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from dualpace.appliance.deployment import load
from dualpace.appliance.dispatch import Dispatcher
from dualpace.appliance.metrics import metrics_text
from dualpace.appliance.tally import Tally
from dualpace.engine.traffic import Traffic
from tests.appliance.bundles import write_bundle
from tests.appliance.fake_ring import FakeRing

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "numpy", "cuda", "transformers", "safetensors", "gguf")


def python(absent, code):
    """Runs `code` where modules are absent."""
    hidden = f"import sys; sys.modules.update(dict.fromkeys({absent!r}))\n"
    return subprocess.run([sys.executable, "-c", hidden + code], capture_output=True, text=True, check=False)


def test_it_needs_nothing_of_a_gpus_host():
    used = "import dualpace.appliance.outpost, dualpace.engine.remote, dualpace.engine.greeting, dualpace.plan.nic_key"
    ended = python(HEAVY, used)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("connect", "key", "words"),
    [
        ("localhost:7471", "there", "RDMA needs pyverbs: install python3-pyverbs or `pip install 'dualpace[rdma]'`"),
        (
            "localhost",
            "there",
            "--connect localhost: write HOST:PORT, and [ADDRESS]:PORT for IPv6, as the engine's log",
        ),
        ("::1:7471", "there", "--connect ::1:7471: write HOST:PORT, and [ADDRESS]:PORT for IPv6"),
        ("localhost:7471", "absent", "absent: No such file or directory; write a key there"),
    ],
    ids=["no verbs", "no port", "no brackets", "no key"],
)
def test_it_says_what_is_missing(tmp_path, connect, key, words):
    (tmp_path / "there").write_text("0123456789abcdef\n")
    arguments = ["outpost", "--connect", connect, "--device", "mlx5_0", "--key-file", str(tmp_path / key)]
    main = f"sys.argv = {arguments!r}; from dualpace.appliance.outpost import main; sys.exit(main())"
    ended = python(("pyverbs",), main)
    assert ended.returncode == 2
    assert words in ended.stderr


def test_what_it_carries_is_among_the_metrics(tmp_path):
    traffic = Traffic(writes=3, reads=2, written_bytes=200, read_bytes=88, doorbells=2, connections=1)
    traffic.faults["unreachable"] += 1
    traffic.attempts, traffic.failures["busy"] = 5, 3
    deployment = load(write_bundle(tmp_path / "bundle"))
    text = metrics_text(deployment, FakeRing().status(), True, Tally().totals(), traffic)
    for line in (
        'dualpace_rdma_operations_total{model_name="toy",kind="write"} 3',
        'dualpace_rdma_bytes_total{model_name="toy",kind="read"} 88',
        'dualpace_rdma_doorbells_total{model_name="toy"} 2',
        'dualpace_rdma_faults_total{model_name="toy",fault="unreachable"} 1',
        'dualpace_rdma_faults_total{model_name="toy",fault="closed"} 0',
        'dualpace_rdma_attempts_total{model_name="toy"} 5',
        'dualpace_rdma_failures_total{model_name="toy",cause="busy"} 3',
        'dualpace_rdma_failures_total{model_name="toy",cause="tls"} 0',
    ):
        assert line in text.splitlines()
    assert "rdma" not in metrics_text(deployment, FakeRing().status(), True, Tally().totals())


def test_a_claim_that_hangs_does_not_hold_up_the_end(tmp_path):
    asked, answered, found = threading.Event(), threading.Event(), FakeRing()

    def claim():
        asked.set()
        assert answered.wait(60)
        return found

    async def serve():
        schedule = load(write_bundle(tmp_path / "bundle")).plan.schedule
        async with Dispatcher(FakeRing(alive=False), schedule, claim):
            assert await asyncio.to_thread(asked.wait, 60)
            begin = time.monotonic()
        return time.monotonic() - begin

    assert asyncio.run(serve()) < 30
    answered.set()
    end = time.monotonic() + 60
    while not found.closed:  # it came too late
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("listens", [False, True], ids=["nobody there", "silence"])
def test_it_ends_at_once_while_it_waits_for_an_engine(tmp_path, listens, number):
    (tmp_path / "key").write_text("0123456789abcdef\n")
    with ExitStack() as held:
        engine = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        arguments = ["outpost", "--connect", f"127.0.0.1:{engine.getsockname()[1]}", "--device", "rxe1"]
        arguments += ["--key-file", str(tmp_path / "key")]
        if not listens:
            engine.close()
        copies = "import sys; from tests.rdma import copies; sys.modules['dualpace.engine.verbs'] = copies"
        main = f"sys.argv = {arguments!r}; from dualpace.appliance.outpost import main; sys.exit(main())"
        command = [sys.executable, "-c", f"{copies}; {main}"]
        process = held.enter_context(subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True))
        held.callback(process.kill)
        if listens:
            held.enter_context(engine.accept()[0]).recv(1)  # and nothing is said
        else:
            assert "trying on" in process.stderr.readline()
        process.send_signal(number)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""
