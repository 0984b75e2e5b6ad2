"""The same random runs under the sanitizers, in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .engines import compile_host
from .plans import TIGHT

ADDRESS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
THREAD = ("-fsanitize=thread", "-g")
RUN = """
import sys
from pathlib import Path
from tests.scheduler.engines import Libraries
from tests.scheduler.plans import TIGHT
from tests.scheduler.toy import Toy, random_run
folder, members = Path(sys.argv[1]), int(sys.argv[2])
with Toy(TIGHT, Libraries(folder / "libengine.so", folder / "libring.so"), folder / "rings", members) as toy:
    random_run(toy, seed=21, steps=int(sys.argv[3]))
    toy.check()
print("checked", len(toy.requests))
"""


@pytest.mark.parametrize(
    ("flags", "runtime", "members", "steps"),
    [(ADDRESS, "libasan.so", 1, 300), (THREAD, "libtsan.so", 4, 60)],
    ids=["address and undefined", "thread"],
)
def test_random_runs_are_clean(tmp_path, flags, runtime, members, steps):
    compile_host(TIGHT, tmp_path, *flags)
    found = subprocess.run(["g++", f"-print-file-name={runtime}"], check=True, capture_output=True, text=True)
    # The interpreter is not built with the sanitizer, so its runtime has to be there first, and it leaks by design.
    environment = os.environ | {
        "LD_PRELOAD": found.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "TSAN_OPTIONS": "halt_on_error=1 report_signal_unsafe=0",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", RUN, str(tmp_path), str(members), str(steps)]
    result = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout.startswith("checked")
