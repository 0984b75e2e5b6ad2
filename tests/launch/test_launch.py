"""An engine and a frontend live and die together. Small processes stand in for both."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dualpace import launch, run_folder
from dualpace.launch import Appliance, LaunchError
from dualpace.run_folder import RunFolder
from tests.plans import example

MANIFEST = SimpleNamespace(plan=example("quickstart"))


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch, tmp_path):
    monkeypatch.setattr(run_folder, "SHARED_MEMORY", shared_memory(tmp_path))
    monkeypatch.setattr(launch, "ENGINE", "tests.launch.engine")
    monkeypatch.setattr(launch, "FRONTEND", "tests.launch.frontend")


def appliance(bundle: Path, quiet: bool = False) -> Appliance:
    return Appliance(bundle, MANIFEST, "127.0.0.1", 0, quiet=quiet)


def alive(bundle: Path) -> list[str]:
    return [name for name in ("engine", "frontend") if Path(f"/proc/{(bundle / f'{name}.pid').read_text()}").exists()]


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


def test_an_engine_that_dies_takes_the_frontend_along(tmp_path):
    with appliance(tmp_path) as running:
        running.start(lambda step: None)
        (tmp_path / "engine.crash").touch()
        with pytest.raises(LaunchError, match=r"engine ended with exit status 7"):
            running.wait(lambda line: None)
    assert alive(tmp_path) == []
    assert (tmp_path / "order").read_text() == "frontend "


def test_an_engine_that_fails_is_started_again_unless_it_fails_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "RESTART_SECONDS", 0.5)
    crash, pid = tmp_path / "engine.crash", tmp_path / "engine.pid"
    said = []

    def crash_again(line):
        said.append(line)
        crash.touch()

    with appliance(tmp_path) as running:
        running.start(lambda step: None)
        first = pid.read_text()
        time.sleep(0.6)
        crash.touch()
        with pytest.raises(LaunchError, match=r"engine ended with exit status 7"):
            running.wait(crash_again)
    assert said == ["tests.launch.engine ended with exit status 7; starting it again"]
    assert pid.read_text() != first
    assert alive(tmp_path) == []


def test_a_killed_frontend_takes_the_engine_along(tmp_path):
    with appliance(tmp_path) as running:
        running.start(lambda step: None)
        os.kill(int((tmp_path / "frontend.pid").read_text()), signal.SIGKILL)
        with pytest.raises(LaunchError, match=r"frontend was ended by SIGKILL"):
            running.wait(lambda line: None)
    assert alive(tmp_path) == []
    assert (tmp_path / "order").read_text() == "engine "


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
        with Appliance(tmp_path, MANIFEST, "127.0.0.1", port) as running, pytest.raises(LaunchError, match="frontend"):
            running.start(lambda step: None)
