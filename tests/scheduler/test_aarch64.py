"""The ring library for a frontend on aarch64, a SmartNIC's cores: cross-compiled, and run under emulation.

Emulation shows that both sides agree on places and values. It keeps the host's memory order, of which it shows nothing.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from dualpace.build.units import HOST, SHARED
from dualpace.engine.ring import SamplingParams

from .engines import write_sources
from .plans import TIGHT
from .test_abi import offsets_program
from .toy import continuation

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")
PROMPT = [5, 17, 60, 2, 44]
FRONTEND = Path(__file__).with_name("frontend.cpp")

pytestmark = pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(EMULATOR[0])),
    reason="needs Debian's g++-aarch64-linux-gnu and qemu-user",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("aarch64")
    write_sources(TIGHT, folder)
    return folder


def compile_for_arm(folder, source, output, *flags):
    command = [COMPILER, *HOST, "-Werror", *flags, str(source), "-o", output]
    subprocess.run(command, cwd=folder, check=True, timeout=300)


def test_the_library_is_built_as_it_is_for_the_host(folder):
    compile_for_arm(folder, "host/ring.cpp", "libring.so", *SHARED)
    machine = (folder / "libring.so").read_bytes()[18:20]
    assert int.from_bytes(machine, "little") == 183  # EM_AARCH64


def test_offsets_and_sizes_are_the_same(folder):
    program, expected = offsets_program(TIGHT)
    (folder / "offsets.cpp").write_text(program)
    compile_for_arm(folder, "offsets.cpp", "offsets")
    printed = subprocess.run([*EMULATOR, "offsets"], cwd=folder, check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == expected


def test_an_engine_on_the_host_serves_a_frontend_on_aarch64(folder, toys):
    compile_for_arm(folder, FRONTEND, "frontend", "-O1")
    toy = toys(TIGHT)
    toy.rings[1].close()
    command = [*EMULATOR, str(folder / "frontend"), str(toy.memory.path), "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as frontend:
        for _ in range(20_000):
            if frontend.poll() is not None:
                break
            toy.step()
            toy.scheduler.wait(0.001)
        else:
            frontend.kill()
        printed, complaint = frontend.communicate()
    assert complaint == ""
    params = SamplingParams(max_tokens=30, stop_tokens=(3,))
    tokens, finish = continuation(TIGHT, PROMPT, params)
    records = [tuple(map(int, line.split())) for line in printed.splitlines()]
    assert [record[:3] for record in records] == [(77, n, token) for n, token in enumerate(tokens)]
    assert [record[3] for record in records] == [0] * (len(tokens) - 1) + [finish]
    assert {record[4] for record in records} == {len(PROMPT)}
