"""The tests of `inside` over the RDMA devices of a guest: the suite of both transports, traffic, faults, the line."""

import os
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.rdma import guest

INSIDE = Path(__file__).with_name("inside")
ROOT = Path(__file__).parents[2]
RESULTS = "results.xml"
# Set where a machine that cannot run a guest is a failure: in CI.
REQUIRED = "DUALPACE_TEST_RDMA"
# Of emulation on two cores that do other work too.
SECONDS = 1800


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """What the guest finds ready."""
    if missing := guest.missing():
        why = f"no guest with RDMA devices here; it takes Debian's {', '.join(missing)}"
        (pytest.fail if REQUIRED in os.environ else pytest.skip)(why)
    from tests.rdma.prepare import prepare

    folder = tmp_path_factory.mktemp("prepared")
    prepare(folder, request.config.cache.mkdir("dualpace-store"))
    return folder


@pytest.mark.timeout(SECONDS + 600)
def test_all_that_is_tested_in_a_guest_passes_and_none_is_skipped(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest_ = f"{sys.executable} -m pytest -p pytest_timeout -p no:cacheprovider -q --durations=10"
    script = f"""cd {ROOT}
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 DUALPACE_GUEST={folder}
# The engine on the CPU comes late, and reads its libraries over the emulated machine's file system.
nice -n 19 {sys.executable} -c 'import torch' &
{pytest_} --junitxml=/mnt/shared/{RESULTS} {INSIDE}
"""
    begin = time.monotonic()
    status, written = guest.run(script, tmp_path, SECONDS)
    with capsys.disabled():
        sys.stdout.write(f" {time.monotonic() - begin:.0f} s in the guest ")
    assert status == 0, written[-20000:]
    (suite,) = ElementTree.parse(tmp_path / RESULTS).getroot()
    passed = {case.get("classname", "").rpartition(".")[2] for case in suite if not len(case)}
    assert passed == {path.stem for path in INSIDE.glob("test_*.py")}
    assert int(suite.get("skipped", "1")) == 0
