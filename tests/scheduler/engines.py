"""Compiles the host engine of a plan, with the probe in it, and the ring library."""

import ctypes
import subprocess
from pathlib import Path
from typing import NamedTuple

from dualpace.build.units import ENGINE, HOST
from dualpace.engine.scheduler import HostScheduler, Step
from dualpace.plan.structs import Lane, StepKind
from dualpace.render.sources import render

HERE = Path(__file__).parent
CLANGS = ("clang++", "clang++-18", "clang++-17", "clang++-16", "clang++-15", "clang++-14")
PROBE = HERE / "probe.cpp"


class Libraries(NamedTuple):
    engine: Path
    ring: Path


def write_sources(plan, folder):
    for path, text in render(plan).items():
        if path.startswith(("common/", "host/")):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)


def plant(plan, folder, file, right, wrong):
    """The sources of `plan` in `folder`, with a bug in one: the text `wrong` in the place of `right`."""
    write_sources(plan, folder)
    source = folder / file
    assert source.read_text().count(right) == 1
    source.write_text(source.read_text().replace(right, wrong))


def compile_host(plan, folder, *flags):
    """`flags` come last, so they win."""
    write_sources(plan, folder)
    libraries = Libraries(folder / "libengine.so", folder / "libring.so")
    for source, library in zip((PROBE, "host/ring.cpp"), libraries, strict=True):
        _compile(folder, source, library, *ENGINE, *flags, "-shared")
    return libraries


def compile_program(folder, source, *flags, compiler="g++"):
    """A program of this folder, over the sources that `write_sources` wrote to `folder`."""
    program = folder / Path(source).stem
    _compile(folder, HERE / source, program, f"-I{HERE}", *flags, compiler=compiler)
    return program


def _compile(folder, source, output, *flags, compiler="g++"):
    """Warnings are errors."""
    command = [compiler, *HOST, "-O1", "-Werror", *flags, "-pthread", str(source), "-o", str(output)]
    subprocess.run(command, cwd=folder, check=True, timeout=300)


class ProbedScheduler(HostScheduler):
    """A scheduler that is checked after each step. `members` threads run it as a team; one runs it alone."""

    def __init__(self, *arguments, members=1, **options):
        super().__init__(*arguments, **options)
        self._members = members
        self._library.probe_invariants.argtypes = (ctypes.c_void_p,)
        self._library.probe_invariants.restype = ctypes.c_char_p
        self._library.probe_at_rest.argtypes = (ctypes.c_void_p,)
        self._library.probe_schedule.argtypes = (ctypes.c_void_p, ctypes.c_int)

    def schedule(self, lane: Lane = Lane.FAST) -> Step:
        if self._members == 1:
            step = super().schedule(lane)
        else:
            self._library.probe_schedule(self._handle, self._members)
            s = self._steps[lane]
            step = Step(s.step, StepKind(s.kind), s.rows, s.tokens, s.samples, s.scored)
        fault = self._library.probe_invariants(self._handle)
        assert fault is None, f"after step {step}: {fault.decode()}"
        return step

    def at_rest(self):
        return bool(self._library.probe_at_rest(self._handle))
