"""The tests of `inside` over the RDMA devices of a guest: the suite of both transports, traffic, faults, the line."""

import os
import resource
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.rdma import guest
from tests.rdma.guest import Ended

INSIDE = Path(__file__).with_name("inside")
ROOT = Path(__file__).parents[2]
RESULTS = "results.xml"
# Set where a machine that cannot run a guest is a failure: in CI.
REQUIRED = "DUALPACE_TEST_RDMA"
# All of it, for a machine of two cores with nothing else to do. What others take of the cores is not counted.
MOST_SECONDS = 480
# Of emulation on two cores that do other work too.
SECONDS = 1800


def check_time(preparing: float, guest: Ended) -> str:
    """What was taken, as a line; more than MOST_SECONDS is too long."""
    own = preparing + guest.seconds - min(guest.waited, guest.seconds)
    told = (
        f"{own:.0f} s: {preparing:.0f} to prepare and {guest.seconds:.0f} in the guest, {guest.waited:.0f} of waiting"
    )
    assert own <= MOST_SECONDS, f"{told}, above {MOST_SECONDS}; make the slowest tests faster:\n{guest.written[-4000:]}"
    return told


def processor_seconds() -> float:
    """Those of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Path, float]:
    """What the guest finds ready, and the processor's seconds that it took."""
    if missing := guest.missing():
        why = f"no guest with RDMA devices here; it takes Debian's {', '.join(missing)}"
        (pytest.fail if REQUIRED in os.environ else pytest.skip)(why)
    from tests.rdma.prepare import prepare

    folder, begin = tmp_path_factory.mktemp("prepared"), processor_seconds()
    prepare(folder, request.config.cache.mkdir("dualpace-store"))
    return folder, processor_seconds() - begin


@pytest.mark.timeout(SECONDS + 600)
def test_all_that_is_tested_in_a_guest_passes_and_none_is_skipped(
    prepared: tuple[Path, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, preparing = prepared
    pytest_ = f"{sys.executable} -m pytest -p pytest_timeout -p no:cacheprovider -q --durations=10"
    script = f"""cd {ROOT}
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 DUALPACE_GUEST={folder}
# The engine on the CPU comes late, and reads its libraries over the emulated machine's file system.
nice -n 19 {sys.executable} -c 'import torch' &
{pytest_} --junitxml=/mnt/shared/{RESULTS} {INSIDE}
"""
    ended = guest.run(script, tmp_path, SECONDS)
    assert ended.status == 0, ended.written[-20000:]
    told = check_time(preparing, ended)
    with capsys.disabled():
        sys.stdout.write(f" {told} ")
    (suite,) = ElementTree.parse(tmp_path / RESULTS).getroot()
    passed = {case.get("classname", "").rpartition(".")[2] for case in suite if not len(case)}
    assert passed == {path.stem for path in INSIDE.glob("test_*.py")}
    assert int(suite.get("skipped", "1")) == 0


@pytest.mark.parametrize(
    ("preparing", "seconds", "waited", "passes"),
    [(60, 200, 0, True), (60, 420, 0, True), (60, 421, 0, False), (100, 1500, 1200, True), (481, 30, 90, False)],
)
def test_more_than_eight_minutes_are_too_many_without_what_others_took(
    preparing: float, seconds: float, waited: float, passes: bool
) -> None:
    guest = Ended(0, "20.00s call test_slow", seconds, waited)
    if passes:
        assert check_time(preparing, guest)
        return
    with pytest.raises(AssertionError, match=r"above 480; make the slowest tests faster:\s+20\.00s call test_slow"):
        check_time(preparing, guest)


def test_time_without_a_core_is_told_from_time_with_one(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    pinned = f"import os, time; os.sched_setaffinity(0, [{core}]); os.nice(10)\n"
    busy = f"{pinned}while time.process_time() < 0.2: pass"
    with (tmp_path / "output").open("w+") as output:
        other = subprocess.Popen(
            [sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"]
        )
        try:
            spent, waited = guest.watched([sys.executable, "-c", busy], output, 60, "python")
        finally:
            other.kill()
            other.wait()
        assert 0.5 * spent < waited < spent
        spent, _ = guest.watched([sys.executable, "-c", "import time; time.sleep(60)"], output, 0.5, "none")
        assert spent < 30
