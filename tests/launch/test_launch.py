"""An engine and a frontend live and die together. Small processes stand in for both."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from dualpace import launch, run_folder
from dualpace.exits import Exit
from dualpace.launch import Appliance, LaunchError
from dualpace.run_folder import RunFolder
from tests.plans import example

PLAN = example("quickstart")


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch, tmp_path):
    monkeypatch.setattr(run_folder, "SHARED_MEMORY", shared_memory(tmp_path))
    monkeypatch.setattr(launch, "ENGINE", "tests.launch.engine")
    monkeypatch.setattr(launch, "FRONTEND", "tests.launch.frontend")


def manifest(frontends: int = 1) -> SimpleNamespace:
    rings = PLAN.rings.model_copy(update={"rings": frontends})
    return SimpleNamespace(plan=PLAN.model_copy(update={"rings": rings}))


def appliance(bundle: Path, quiet: bool = False, frontends: int = 1) -> Appliance:
    return Appliance(bundle, manifest(frontends), "127.0.0.1", 0, quiet=quiet)


def pid(bundle: Path, name: str) -> int:
    return int((bundle / f"{name}.pid").read_text() or 0)


def alive(bundle: Path) -> list[str]:
    names = sorted(path.stem for path in bundle.glob("*.pid"))
    return [name for name in names if Path(f"/proc/{pid(bundle, name)}").exists()]


def eventually(condition: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not come about in time"
        time.sleep(0.02)


@contextmanager
def waiting(running: Appliance, bundle: Path) -> Iterator[list[str]]:
    """Starts again what fails, until the block ends and the engine with it. Gives what is said of it."""
    said = []

    def wait() -> None:
        with pytest.raises(LaunchError, match=r"engine ended with exit status 0"):
            running.wait(said.append)

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield said
    finally:
        os.kill(pid(bundle, "engine"), signal.SIGTERM)
        thread.join()


def shared_memory(bundle: Path) -> Path:
    """Stands in for the system's."""
    folder = bundle / "shm"
    folder.mkdir(exist_ok=True)
    return folder


def run_folders(bundle: Path) -> list[Path]:
    return list(shared_memory(bundle).iterdir())


def test_start_waits_until_requests_are_served_and_the_end_drains_the_frontend_first(tmp_path):
    steps = []
    with appliance(tmp_path) as running:
        running.start(steps.append)
        assert alive(tmp_path) == ["engine", "frontend"]
        [folder] = run_folders(tmp_path)
        for name in ("engine", "frontend"):  # each keeps the folder alive
            descriptors = Path(f"/proc/{(tmp_path / f'{name}.pid').read_text()}/fd").iterdir()
            assert folder in [descriptor.resolve() for descriptor in descriptors]
    assert steps == ["start the engine", "start the frontend", "load the model"]
    assert (tmp_path / "order").read_text() == "frontend engine "
    assert alive(tmp_path) == []
    assert run_folders(tmp_path) == []


def test_an_engine_that_cannot_start_says_why(tmp_path):
    (tmp_path / "engine.fails").touch()
    with appliance(tmp_path, quiet=True) as running, pytest.raises(LaunchError) as caught:
        running.start(lambda step: None)
    assert str(caught.value) == "no such weights\ntests.launch.engine ended with exit status 1"


def test_an_engine_that_fails_is_started_again_unless_it_fails_at_once(tmp_path):
    said = []

    def crash_again(line):
        said.append(line)
        (tmp_path / "engine.crash").touch()

    with appliance(tmp_path) as running:
        running.start(lambda step: None)
        first = pid(tmp_path, "engine")
        (tmp_path / "engine.crash").touch()
        with pytest.raises(LaunchError, match=r"engine ended with exit status 7"):
            running.wait(crash_again)
    assert said == ["tests.launch.engine ended with exit status 7; starting it again"]
    assert pid(tmp_path, "engine") != first
    assert alive(tmp_path) == []
    assert (tmp_path / "order").read_text() == "frontend "


def test_an_engine_that_has_served_for_a_while_is_started_again_whenever_it_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "RESTART_SECONDS", 0.0)
    with appliance(tmp_path) as running:
        running.start(lambda step: None)
        with waiting(running, tmp_path) as said:
            for _ in range(3):
                before = pid(tmp_path, "engine")
                (tmp_path / "engine.crash").touch()
                eventually(lambda gone=before: pid(tmp_path, "engine") not in (0, gone) and running._served_since)
            assert len(said) == 3


def test_killed_frontends_are_started_again_and_the_others_and_the_engine_stay(tmp_path):
    with appliance(tmp_path, frontends=3) as running:
        steps = []
        running.start(steps.append)
        assert "start 3 frontends" in steps
        everyone = ["engine", "frontend", "frontend1", "frontend2"]
        assert alive(tmp_path) == everyone
        before = {name: pid(tmp_path, name) for name in everyone}
        with waiting(running, tmp_path) as said:
            for name in ("frontend1", "frontend2"):
                os.kill(before[name], signal.SIGKILL)
            eventually(lambda: all(pid(tmp_path, name) not in (0, before[name]) for name in ("frontend1", "frontend2")))
            eventually(lambda: alive(tmp_path) == everyone)
            assert [pid(tmp_path, name) for name in ("engine", "frontend")] == [before["engine"], before["frontend"]]
            assert sorted(said) == [
                f"tests.launch.frontend {ring} was ended by SIGKILL; starting it again" for ring in (1, 2)
            ]
    assert alive(tmp_path) == []


def test_a_frontend_that_fails_again_at_once_is_not_started_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "RESTART_SECONDS", 1.0)
    with appliance(tmp_path) as running:
        running.start(lambda step: None)
        with waiting(running, tmp_path) as said:
            times = []
            for _ in range(3):
                before = pid(tmp_path, "frontend")
                os.kill(before, signal.SIGKILL)
                eventually(lambda gone=before: pid(tmp_path, "frontend") not in (0, gone))
                times.append(time.monotonic())
            assert times[2] - times[1] >= 0.8
            assert times[1] - times[0] >= 0.8
            assert len(said) == 3


def test_a_frontend_that_refuses_its_input_the_second_time_ends_the_deployment(tmp_path):
    with appliance(tmp_path) as running:
        running.start(lambda step: None)
        (tmp_path / "frontend.refuses").touch()
        os.kill(pid(tmp_path, "frontend"), signal.SIGKILL)
        with pytest.raises(LaunchError, match=r"frontend ended with exit status 2") as caught:
            running.wait(lambda line: None)
    assert caught.value.code == Exit.USAGE
    assert alive(tmp_path) == []


PARENT = """
import sys, time
from pathlib import Path
from tests.launch import test_launch as t
t.launch.ENGINE, t.launch.FRONTEND = "tests.launch.engine", "tests.launch.frontend"
t.run_folder.SHARED_MEMORY = t.shared_memory(Path(sys.argv[1]))
t.launch.end_on_signals()
with t.appliance(Path(sys.argv[1])) as running:
    running.start(lambda step: None)
    print("ready", flush=True)
    running.wait(lambda line: None)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_process_outlives_the_command(number, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, tmp_path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout.readline() == "ready\n"
        parent.send_signal(number)
    deadline = time.monotonic() + 10
    while alive(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert alive(tmp_path) == []
    if number != signal.SIGKILL:
        assert (tmp_path / "order").read_text() == "frontend engine "
        assert run_folders(tmp_path) == []
        return
    [left] = run_folders(tmp_path)
    with appliance(tmp_path):
        assert len(run_folders(tmp_path)) == 1
        assert not left.exists()


def test_the_folder_of_a_run_stays_while_any_of_its_processes_does(tmp_path):
    root = shared_memory(tmp_path)
    first = RunFolder(root)
    with subprocess.Popen(["sleep", "60"], pass_fds=[first.lock]) as child:
        os.close(first.lock)  # as the death of the process that made it does
        second = RunFolder(root)
        assert first.path.exists()
        child.kill()
    third = RunFolder(root)
    assert sorted(root.iterdir()) == sorted([second.path, third.path])
    second.close()
    third.close()
    assert list(root.iterdir()) == []


def test_a_port_that_another_server_has_is_not_taken_for_this_ones(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Appliance(tmp_path, manifest(), "127.0.0.1", port) as running:
            with pytest.raises(LaunchError, match=f"cannot listen on 127.0.0.1:{port}.*--port") as caught:
                running.start(lambda step: None)
            assert caught.value.code == Exit.USAGE


def test_two_deployments_do_not_share_a_port(tmp_path):
    with appliance(tmp_path, frontends=2) as first:
        first.start(lambda step: None)
        with (
            Appliance(tmp_path, manifest(2), "127.0.0.1", first.port) as second,
            pytest.raises(LaunchError, match="Address already in use"),
        ):
            second.start(lambda step: None)
