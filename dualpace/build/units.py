"""What is compiled for a plan, as data: which source with which flags makes which object, and what links them.

Paths are relative to the folder of sources, which is also the compilers' working folder, so that no path of the machine
gets into an object.
"""

import posixpath
import re
from collections.abc import Iterable, Mapping

from dualpace.build.headers import HeaderLibrary, include_flags
from dualpace.build.toolchain import Tool
from dualpace.frozen import Frozen
from dualpace.plan.manifest import AARCH64_RING, CUDA_ENGINE, CUDA_PREFILL, HOST_ENGINE, HOST_RING, HOST_WORKERS
from dualpace.plan.plan import Plan

_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)

AARCH64: Tool = "aarch64-linux-gnu-g++"
HOST = (
    "-std=c++20", "-O3", "-fPIC", "-fno-semantic-interposition", "-Wall", "-Wextra", "-Wconversion", "-I.",
)  # fmt: skip
# Scheduler and sampler compute the same on every target: no product and sum are fused but where the source says so.
ENGINE = ("-march=x86-64-v3", "-ffp-contract=off", "-fopenmp")
KERNELS = ("-fopenmp", "-fno-math-errno", "-fno-trapping-math")
# Instruction sets that kernels are compiled for, least first; the engine picks one when it starts.
ISAS: dict[str, tuple[str, ...]] = {
    "v3": ("-march=x86-64-v3",),
    "v4": ("-march=x86-64-v4",),
    "v4_bf16": ("-march=x86-64-v4", "-mavx512bf16"),
    "v4_amx": ("-march=x86-64-v4", "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
}
SHARED = ("-shared", "-Wl,--build-id=none", "-Wl,-z,defs")
# Besides the kernels, what the engine of a device needs for CPU workers.
WORKERS = ("host/dispatch.cpp", "host/workers.cpp")
WHOLE = ("-std=c++20", "-O3", "-cubin", "-I.", "-Xcompiler=-Wall,-Wextra")
CUDA = (*WHOLE, "-rdc=true")
# Not linked with others: in relocatable code ptxas ignores setmaxnreg (C7504) and makes wgmma wait (C7509).
WHOLE_PROGRAMS = {"cuda/prefill.cu": CUDA_PREFILL}


class Unit(Frozen):
    """One compile of `source` to `object`, with `headers`; `label` is what progress calls it."""

    tool: Tool
    source: str
    object: str
    label: str
    flags: tuple[str, ...]
    headers: tuple[HeaderLibrary, ...] = ()


class Library(Frozen):
    """One link of units to `output`, the path in the bundle; without flags, its only unit as it is."""

    tool: Tool
    output: str
    units: tuple[Unit, ...]
    flags: tuple[str, ...] = ()


def libraries(plan: Plan, sources: Iterable[str]) -> tuple[Library, ...]:
    """Everything that is linked for the target of `plan`, from what is in `sources` (paths).

    `host/ring.cpp` makes the ring library, and where frontends come in by RDMA another for a SmartNIC's cores. On the
    CPU every other `host/*.cpp` goes into the engine, those named `kernels*.cpp` once for each instruction set; on CUDA
    every `cuda/*.cu` does, those named `*flashinfer.cu` with FlashInfer's headers, but for whole programs, which are
    cubins of their own, and what CPU workers need is a library too.
    """
    rings = [Library(tool="g++", output=HOST_RING, units=(_plain("host/ring.cpp", HOST),), flags=SHARED)]
    if plan.nic:
        unit = _plain("host/ring.cpp", HOST).model_copy(
            update={"tool": AARCH64, "object": "host/ring.cpp.aarch64.o", "label": "host/ring.cpp for aarch64"}
        )
        rings.append(Library(tool=AARCH64, output=AARCH64_RING, units=(unit,), flags=SHARED))
    if plan.target.kind == "cuda":
        sm, paths = plan.target.sm, sorted(path for path in sources if path.endswith(".cu"))
        programs = (
            Library(tool="nvcc", output=WHOLE_PROGRAMS[path], units=(_kernels(sm, path, WHOLE),))
            for path in paths
            if path in WHOLE_PROGRAMS
        )
        if plan.offload.mode == "cooperative":
            rings.append(_host_library(HOST_WORKERS, [*WORKERS, "host/kernels.cpp"]))
        return (*rings, _cuda_engine(sm, [path for path in paths if path not in WHOLE_PROGRAMS]), *programs)
    return (
        *rings,
        _host_library(HOST_ENGINE, sorted(p for p in sources if p.endswith(".cpp") and p != "host/ring.cpp")),
    )


def attention_kernels(plan: Plan, sources: Iterable[str]) -> Library:
    """What `dualpace calibrate` measures: the attention of the CUDA engine of `plan`, alone."""
    return _cuda_engine(
        plan.target.sm, sorted(p for p in sources if p.startswith("cuda/attention") and p.endswith(".cu"))
    )


def _host_library(output: str, paths: list[str]) -> Library:
    kernels = [path for path in paths if path.startswith("host/kernels")]
    units = [_plain(path, (*HOST, *ENGINE)) for path in paths if path not in kernels]
    # The linker keeps the first copy of an inline function: objects for lesser machines come first.
    units += [_kernel(path, isa) for isa in ISAS for path in kernels]
    return Library(tool="g++", output=output, units=tuple(units), flags=(*SHARED, "-fopenmp"))


def _plain(path: str, flags: tuple[str, ...]) -> Unit:
    return Unit(tool="g++", source=path, object=f"{path}.o", label=path, flags=flags)


def _kernel(path: str, isa: str) -> Unit:
    flags = (*HOST, *KERNELS, *ISAS[isa], f"-DDP_ISA={isa}")
    return Unit(tool="g++", source=path, object=f"{path}.{isa}.o", label=f"{path} for {isa}", flags=flags)


def _cuda_engine(sm: str, paths: list[str]) -> Library:
    units = tuple(_kernels(sm, path, CUDA) for path in paths)
    flags = (f"-arch=sm_{sm}", "-dlink", "-cubin", "-lcudadevrt")
    return Library(tool="nvcc", output=CUDA_ENGINE, units=units, flags=flags)


def _kernels(sm: str, path: str, flags: tuple[str, ...]) -> Unit:
    headers: tuple[HeaderLibrary, ...] = ("flashinfer",) if path.endswith("flashinfer.cu") else ()
    flags = (*flags, f"-arch=sm_{sm}", *(flag for library in headers for flag in include_flags(library)))
    return Unit(
        tool="nvcc",
        source=path,
        object=f"{path}.cubin",
        label=f"{path} for sm_{sm}",
        flags=flags,
        headers=headers,
    )


def inputs(source: str, sources: Mapping[str, str]) -> dict[str, str]:
    """`source` and everything of `sources` that it includes, with their texts, by path."""
    found: dict[str, str] = {}
    pending = [source]
    while pending:
        path = pending.pop()
        if path in found or path not in sources:
            continue
        found[path] = sources[path]
        for include in _INCLUDE.findall(sources[path]):
            pending += [include, posixpath.normpath(posixpath.join(posixpath.dirname(path), include))]
    return dict(sorted(found.items()))
