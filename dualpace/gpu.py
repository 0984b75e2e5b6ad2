"""The GPU of this machine, asked of the driver alone: nothing is allocated and no kernel is loaded."""

import ctypes
from typing import NamedTuple
from uuid import UUID

# The driver of the toolkit that bundles are compiled with.
LEAST_DRIVER = 13000
_COMPUTE_MAJOR, _COMPUTE_MINOR = 75, 76  # of CUdevice_attribute
_NAME_BYTES = 256


class Gpu(NamedTuple):
    """The first GPU that this process sees. `driver` is the CUDA that its driver speaks, 13000 for 13.0.

    `sm` is like "90"; `memory` is in bytes, and so is `free`, what nobody has taken of it: None if that is not told.
    """

    name: str
    driver: int
    sm: str
    memory: int
    free: int | None


class _Memory(ctypes.Structure):
    """NVML's nvmlMemory_t, in bytes."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def find() -> Gpu | None:
    """The GPU, if the NVIDIA driver shows one to this process."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    count, device, version, major, minor = (ctypes.c_int() for _ in range(5))
    name, memory = ctypes.create_string_buffer(_NAME_BYTES), ctypes.c_size_t()
    calls = (
        (driver.cuInit, 0),
        (driver.cuDeviceGetCount, ctypes.byref(count)),
        (driver.cuDeviceGet, ctypes.byref(device), 0),
        (driver.cuDriverGetVersion, ctypes.byref(version)),
        (driver.cuDeviceGetName, name, _NAME_BYTES, device),
        (driver.cuDeviceTotalMem_v2, ctypes.byref(memory), device),
        (driver.cuDeviceGetAttribute, ctypes.byref(major), _COMPUTE_MAJOR, device),
        (driver.cuDeviceGetAttribute, ctypes.byref(minor), _COMPUTE_MINOR, device),
    )
    # Each asks only if those before it were answered: without a GPU, the third fails.
    if any(function(*arguments) for function, *arguments in calls):
        return None
    # Older drivers need not have all that this asks, and are refused anyway.
    free = _free(driver, device) if version.value >= LEAST_DRIVER else None
    return Gpu(name.value.decode(), version.value, f"{major.value}{minor.value}", memory.value, free)


def _free(driver: ctypes.CDLL, device: ctypes.c_int) -> int | None:
    """Bytes of memory that the GPU, or the part of one, has left; asking CUDA would make a context that takes some."""
    uuid = ctypes.create_string_buffer(16)
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if driver.cuDeviceGetUuid_v2(uuid, device) or nvml.nvmlInit_v2():
        return None
    handle, memory = ctypes.c_void_p(), _Memory()
    try:
        names = (f"{kind}-{UUID(bytes=uuid.raw)}".encode() for kind in ("GPU", "MIG"))
        if all(nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)) for name in names):
            return None
        return None if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) else memory.free
    finally:
        nvml.nvmlShutdown()


def there_is_one() -> bool:
    """Whether the NVIDIA driver shows a GPU to this process."""
    return find() is not None


def lacking(name: str, target: str) -> str:
    """What to say where `name`, built for the GPU `target`, finds none."""
    return (
        f"{name} is built for {target} and this machine shows no NVIDIA GPU: "
        "serve it on one that has it (a container needs `--gpus all`), or build a spec with `cpu: true` in its target"
    )


def refusal(name: str, target: str, sm: str, needed: int) -> str | None:
    """Why `name`, compiled for `target` with `sm` and taking `needed` bytes, cannot run here; None if it can."""
    gpu = find()
    if gpu is None:
        return lacking(name, target)
    if gpu.driver < LEAST_DRIVER:
        return (
            f"the NVIDIA driver speaks CUDA {_release(gpu.driver)}, {name} needs {_release(LEAST_DRIVER)}: "
            "install a newer driver"
        )
    if sm.rstrip("af") != gpu.sm:
        return (
            f"{name} is compiled for sm_{sm} ({target}) and {gpu.name} is sm_{gpu.sm}: "
            "build the spec with the `target.gpu` of this machine"
        )
    if needed > gpu.memory:
        return (
            f"{name} needs {needed >> 20} MiB of GPU memory and {gpu.name} has {gpu.memory >> 20}: "
            "build the spec with the `target.gpu` of this machine, or lower `target.memory_fraction`"
        )
    if gpu.free is not None and needed > gpu.free:
        return (
            f"{name} needs {needed >> 20} MiB of GPU memory and {gpu.free >> 20} of {gpu.memory >> 20} MiB are free: "
            "end what else uses the GPU, or lower `target.memory_fraction`"
        )
    return None


def _release(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
