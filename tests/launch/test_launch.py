"""An engine and a frontend live and die together. Small processes stand in for both."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dualpace import launch
from dualpace.launch import Appliance, LaunchError, refuse_unserved
from tests.plans import example

MANIFEST = SimpleNamespace(plan=example("quickstart"))


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch):
    monkeypatch.setattr(launch, "ENGINE", "tests.launch.engine")
    monkeypatch.setattr(launch, "FRONTEND", "tests.launch.frontend")
    before = ring_folders()
    yield
    for folder in ring_folders() - before:  # that of a parent killed on purpose
        shutil.rmtree(folder)


def appliance(bundle: Path, quiet: bool = False) -> Appliance:
    return Appliance(bundle, MANIFEST, "127.0.0.1", 0, quiet=quiet)


def alive(bundle: Path) -> list[str]:
    return [name for name in ("engine", "frontend") if Path(f"/proc/{(bundle / f'{name}.pid').read_text()}").exists()]


def ring_folders() -> set[Path]:
    return set(Path("/dev/shm").glob("dualpace-*"))


def test_start_waits_until_requests_are_served_and_the_end_drains_the_frontend_first(tmp_path):
    before = ring_folders()
    steps = []
    with appliance(tmp_path) as running:
        running.start(steps.append)
        assert alive(tmp_path) == ["engine", "frontend"]
        assert len(ring_folders() - before) == 1
    assert steps == ["start the engine", "start the frontend", "load the model"]
    assert (tmp_path / "order").read_text() == "frontend engine "
    assert alive(tmp_path) == []
    assert ring_folders() == before


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
            running.wait()
    assert alive(tmp_path) == []
    assert (tmp_path / "order").read_text() == "frontend "


def test_a_killed_frontend_takes_the_engine_along(tmp_path):
    with appliance(tmp_path) as running:
        running.start(lambda step: None)
        os.kill(int((tmp_path / "frontend.pid").read_text()), signal.SIGKILL)
        with pytest.raises(LaunchError, match=r"frontend was ended by SIGKILL"):
            running.wait()
    assert alive(tmp_path) == []
    assert (tmp_path / "order").read_text() == "engine "


PARENT = """
import sys, time
from pathlib import Path
from tests.launch import test_launch as t
t.launch.ENGINE, t.launch.FRONTEND = "tests.launch.engine", "tests.launch.frontend"
t.launch.end_on_signals()
with t.appliance(Path(sys.argv[1])) as running:
    running.start(lambda step: None)
    print("ready", flush=True)
    running.wait()
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


def test_a_target_that_nothing_serves_is_refused_by_name():
    with pytest.raises(LaunchError, match=r"target\.gpu h200") as caught:
        refuse_unserved(example("llama-3.1-8b-h200"))
    assert caught.value.usage
