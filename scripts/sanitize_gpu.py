"""compute-sanitizer over every kernel, and over an engine whose steps the host launches.

    python -m scripts.sanitize_gpu [--jobs N] [--only WORD] [LOGS]

Prints a line a run and fails if a run finds something or does not pass. Runs share the GPU. What they print goes to
files in the folder LOGS. Kernels are taken through device tests of a few plans, which between them have each of them;
the engine serves a few requests driven by the host, since sanitizers cannot follow steps that the device launches.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from dualpace.build.bundle import build
from dualpace.build.store import Store
from dualpace.engine.ring import Finish, FrontendRing, SamplingParams
from dualpace.plan.manifest import HOST_RING
from dualpace.plan.resolve import resolve
from dualpace.spec.models import Spec
from tests.gpu.conftest import Silent
from tests.gpu.test_serve import SPEC

SECONDS = 300
ENGINE = "engine"
# What our kernels' names begin with.
OURS = "dp_"
# Memory is the driver's own allocations, so that each has its own bounds; but not under graph capture, where the
# engine's is.
EXACT_BOUNDS = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
SUMMARY = re.compile(r"={9} ((?:ERROR|RACECHECK) SUMMARY: .*)")
CLEAN = ("ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")


class Run(NamedTuple):
    """A tool over those tests of a file that `only` selects, or over an engine."""

    tool: str
    what: str
    only: str = ""


_ATTENTION = (
    "(float64 and mixed and not shares or copies_values and decode or merge and not serve) and not long and "
    "(g4-d128-p16-bf16 or g16-d256-p32-fp32 or g5-d128-p32-fp16)"
)
_PREFILL = "decoding_rows_match and 132 and (g4-d128 or windows-d256 or softcap) or touches_nothing and g4-d128"
_FEW_OF_ATTENTION = "float64 and mixed and not shares and (g4-d128-p16-bf16 or g16-d256-p32-fp32) and not long"
_FEW_OF_PREFILL = "decoding_rows_match and 132 and g4-d128"
_FEW_OF_LINEAR = "narrow and 5-of-8 and not beside"
_FEW_OF_POINTWISE = "not host and g4-d128-p16-bf16 and 37-tokens-5-ctas"
_LINEAR = "(narrow and of-8 or ragged and of-3) and not beside"
_POINTWISE = "not host and (g4-d128-p16-bf16 or g3-d96-p8-fp16 or g8-d80-p16-fp32) and not 300-ctas"
# Layers are alike.
_MODEL = SPEC | {"model": SPEC["model"] | {"shape": SPEC["model"]["shape"] | {"layers": 1}}}
RUNS = (
    Run("memcheck", "test_attention", _ATTENTION),
    Run("memcheck", "test_prefill", _PREFILL),
    Run("memcheck", "test_linear", _LINEAR),
    Run("memcheck", "test_pointwise", _POINTWISE),
    Run("memcheck", "test_transfer", "listed_arrives and 39"),
    Run("memcheck", "test_scheduler", "decisions and few"),
    Run("memcheck", ENGINE),
    Run("racecheck", "test_attention", _FEW_OF_ATTENTION),
    Run("racecheck", "test_prefill", _FEW_OF_PREFILL),
    Run("racecheck", "test_linear", _FEW_OF_LINEAR),
    Run("racecheck", "test_pointwise", _FEW_OF_POINTWISE),
    Run("racecheck", ENGINE),
)


class Outcome(NamedTuple):
    """How a run went: whether all is well, its last words and the tool's, its time in seconds."""

    well: bool
    said: str
    summary: str
    seconds: float


def sanitized(tool: str, kernels: str, *arguments: str) -> list[str]:
    """The command that runs this interpreter under `tool`, which looks at kernels so called, or at all."""
    options = ["--target-processes=application-only", "--report-api-errors=no"]
    if kernels:
        options.append(f"--kernel-name=kns={kernels}")
    # Kernels are compiled before the first call of the driver, which is when the tool attaches.
    options.append(f"--launch-timeout={SECONDS}")
    return ["compute-sanitizer", f"--tool={tool}", *options, sys.executable, "-m", *arguments]


def run_tests(run: Run, cache: Path, log: Path) -> bool:
    """Whether the run's tests pass."""
    options = ["-q", "-m", "gpu", "-k", run.only, "-o", f"cache_dir={cache}"]
    with log.open("w") as output:
        return not subprocess.run(
            sanitized(run.tool, OURS, "pytest", f"tests/gpu/{run.what}.py", *options),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | EXACT_BOUNDS,
            timeout=SECONDS,
            check=False,
        ).returncode


def requests() -> dict[int, tuple[list[int], SamplingParams]]:
    """Prompts about the boundaries of pages and chunks, more than there are rows, and all that can be asked."""
    vocabulary = _MODEL["model"]["shape"]["vocab"]
    asked = (
        {"temperature": 0.0},
        {"temperature": 1.0, "top_p": 0.9, "top_k": 40, "logprobs": 5},
        {"temperature": 1.0, "repetition_penalty": 1.2, "frequency_penalty": 0.5, "logit_bias": ((5, 2.0),)},
        {"temperature": 0.0, "prompt_logprobs": 3, "logprobs": 0},
    )
    lengths = (1, 15, 16, 17, 127, 128, 129, 300, *(1,) * 12)
    return {
        tag: ([(7 * tag + i) % vocabulary for i in range(length)], SamplingParams(max_tokens=4, **asked[tag % 4]))
        for tag, length in enumerate(lengths)
    }


def run_engine(tool: str, bundle: Path, log: Path) -> bool:
    """Whether an engine under `tool`, driven by the host, answers all requests."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, log.open("w") as output:
        rings = Path(folder) / "rings"
        # Under racecheck cuBLAS's kernels for Hopper end in an illegal address, unless it looks at them too and they
        # are in no graph.
        kernels, drive = ("", "operations") if tool == "racecheck" else (OURS, "host")
        command = sanitized(tool, kernels, "dualpace.engine", str(bundle), "--rings", str(rings), "--drive", drive)
        # Loading all of torch's kernels takes minutes when each is instrumented.
        lazily = os.environ | {"CUDA_MODULE_LOADING": "LAZY"}
        with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=lazily) as process:
            try:
                answered = answer(process, bundle, rings)
                os.kill(engine_at(rings), signal.SIGTERM)
                # The tool finds no exit status of a process that ends so.
                process.wait(SECONDS)
                output.write(f"{answered} requests answered\n")
                return answered == len(requests())
            finally:
                process.kill()


def answer(process: subprocess.Popen[bytes], bundle: Path, rings: Path) -> int:
    """Requests that the engine has answered, which is all of them."""
    deadline = time.monotonic() + SECONDS

    def live() -> bool:
        assert process.poll() is None, f"the engine ended with {process.returncode}"
        assert time.monotonic() < deadline, "the engine is too slow"
        return True

    while not rings.exists() and live():
        time.sleep(0.05)
    ring = FrontendRing(bundle / HOST_RING, rings)
    waiting = requests()
    for tag, request in waiting.items():
        assert ring.submit(tag, *request)
    finished: set[int] = set()
    while len(finished) < len(waiting) and live():
        ends = [event for event in ring.wait(0.1) if event.finish]
        assert all(event.finish is Finish.LENGTH for event in ends), ends
        finished.update(event.tag for event in ends)
    ring.close()
    return len(finished)


def engine_at(rings: Path) -> int:
    """The process of the engine of `rings`, whoever started it."""
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            words = (process / "cmdline").read_bytes().split(b"\0")
            if words[1:3] == [b"-m", b"dualpace.engine"] and str(rings).encode() in words:
                return int(process.name)
    raise AssertionError(f"no process serves {rings}")


def outcome(run: Run, bundle: Path, cache: Path, logs: Path) -> Outcome:
    """Do `run`."""
    log = logs / f"{run.tool}-{run.what}.log"
    began = time.monotonic()
    try:
        well = run_engine(run.tool, bundle, log) if run.what == ENGINE else run_tests(run, cache, log)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        log.open("a").write(f"{error}\n")
        well = False
    lines = log.read_text(errors="replace").splitlines()
    summary = [found[1] for line in lines if (found := SUMMARY.match(line))]
    said = [line for line in lines if line and not line.startswith("=========")]
    found = summary[-1] if summary else "no summary"
    return Outcome(well and found in CLEAN, said[-1] if said else "", found, time.monotonic() - began)


def main() -> int:
    """Run what is asked for and print a line each; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logs", type=Path, nargs="?", default=Path(".pytest_cache/sanitizer"))
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--only", default="", help="runs whose name has this word")
    arguments = parser.parse_args()
    arguments.logs.mkdir(parents=True, exist_ok=True)
    runs = [run for run in RUNS if arguments.only in f"{run.tool} {run.what}"]
    bundle, cache = arguments.logs.absolute() / "bundle", arguments.logs.absolute() / "cache"
    build(resolve(Spec.model_validate(_MODEL), arguments.logs), bundle, Store(arguments.logs / "store"), Silent())
    do = partial(outcome, bundle=bundle, cache=cache, logs=arguments.logs)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        outcomes = list(pool.map(do, runs))
    for run, each in zip(runs, outcomes, strict=True):
        verdict = "ok" if each.well else "FAILS"
        print(f"{verdict:5} {run.tool:9} {run.what:14} {each.seconds:5.0f} s  {each.summary}  {each.said}")
    return int(not all(each.well for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
