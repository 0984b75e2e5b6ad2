"""A GPU through the driver: kernels of cubins by name, graphs that the device launches, host memory it sees.

Kernels run on torch's current stream over torch's memory. Every call raises DeviceError with the driver's name of what
went wrong.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver


class DeviceError(Exception):
    """A driver call that failed."""


def check(result: tuple[Any, ...]) -> Any:
    """The value of a driver call. Raises DeviceError with the driver's name of the error."""
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        _, name = driver.cuGetErrorName(status)
        raise DeviceError(name.decode() if name else f"CUDA error {int(status)}")
    return values[0] if len(values) == 1 else tuple(values)


def _ok(result: tuple[Any, ...]) -> bool:
    return bool(result[0] == driver.CUresult.CUDA_SUCCESS)


def ended(stream: torch.cuda.Stream) -> bool:
    """Whether nothing runs on `stream` any more. Raises DeviceError for a kernel that failed."""
    status = driver.cuStreamQuery(stream.cuda_stream)
    if status[0] == driver.CUresult.CUDA_ERROR_NOT_READY:
        return False
    try:
        check(status)
    except DeviceError as error:
        raise DeviceError(f"a kernel has failed: {error}") from error
    return True


_Get = Callable[[Any, bytes], tuple[Any, ...]]
Argument = torch.Tensor | int | float | ctypes.c_int64 | ctypes.c_void_p | None


def _typed(argument: Argument) -> tuple[Any, type]:
    match argument:
        case torch.Tensor():
            return argument.data_ptr(), ctypes.c_void_p
        case float():
            return argument, ctypes.c_float
        case int():
            return argument, ctypes.c_int
        case None:
            return 0, ctypes.c_void_p
    return argument.value, type(argument)


def make_current() -> None:
    """Make torch's context the one that this thread's calls of the driver are about."""
    torch.zeros(1, device="cuda")


@contextmanager
def mapped(address: int, size: int) -> Iterator[ctypes.c_void_p]:
    """The device's address of host memory that it may read and write meanwhile."""
    make_current()
    check(driver.cuMemHostRegister(address, size, driver.CU_MEMHOSTREGISTER_DEVICEMAP))
    try:
        yield ctypes.c_void_p(int(check(driver.cuMemHostGetDevicePointer(address, 0))))
    finally:
        # Not checked: once a kernel has failed every call fails, and says less than the first that did.
        driver.cuMemHostUnregister(address)


class Cubin:
    """Loaded cubins, as one.

    Every kernel of it is launched with the most threads it was compiled for, and with as much dynamic shared memory as
    the constant `NAME_shared_bytes` says, if there is one.
    """

    def __init__(self, *paths: Path) -> None:
        make_current()
        self._modules = [check(driver.cuModuleLoadData(path.read_bytes())) for path in paths]
        self._kernels: dict[str, tuple[Any, int, int]] = {}
        self._constants: dict[str, int] = {}

    def launch(self, name: str, grid: tuple[int, ...], *arguments: Argument, overlap: bool = False) -> None:
        """Launch `name` on torch's current stream. Tensors go as pointers, int as int32, float as fp32.

        With `overlap` it may begin before what is in front of it has ended (programmatic dependent launch): the kernel
        has to wait for that itself before it touches what others write.
        """
        kernel, threads, shared = self._kernel(name)
        typed = tuple(_typed(argument) for argument in arguments)
        operands = tuple(value for value, _ in typed), tuple(kind for _, kind in typed)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = shared
        config.hStream = torch.cuda.current_stream().cuda_stream
        if overlap:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs, config.numAttrs = [attribute], 1
        check(driver.cuLaunchKernelEx(config, kernel, operands, 0))

    def has(self, kernel: str) -> bool:
        """Whether there is a kernel of this name."""
        return self._has(driver.cuModuleGetFunction, kernel)

    def constant(self, name: str) -> int:
        """The 8-byte constant `name`, read once: a stream under capture could not."""
        if name not in self._constants:
            self._constants[name] = self._read(name)
        return self._constants[name]

    def _read(self, name: str) -> int:
        address, size = self._found(driver.cuModuleGetGlobal, name)
        value = ctypes.c_uint64()
        assert size == ctypes.sizeof(value)
        check(driver.cuMemcpyDtoH(ctypes.addressof(value), address, size))
        return value.value

    def resident_ctas(self, name: str) -> int:
        """CTAs of `name` that the whole GPU runs at once."""
        kernel, threads, shared = self._kernel(name)
        per_sm: int = check(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(kernel, threads, shared))
        return per_sm * torch.cuda.get_device_properties().multi_processor_count

    def _kernel(self, name: str) -> tuple[Any, int, int]:
        """The kernel, its threads and its dynamic shared memory."""
        if name not in self._kernels:
            kernel = self._found(driver.cuModuleGetFunction, name)
            attributes = driver.CUfunction_attribute
            threads = check(driver.cuFuncGetAttribute(attributes.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel))
            size = f"{name}_shared_bytes"
            shared = self.constant(size) if self._has(driver.cuModuleGetGlobal, size) else 0
            limit = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(kernel, limit, shared))
            self._kernels[name] = kernel, threads, shared
        return self._kernels[name]

    def _has(self, get: _Get, name: str) -> bool:
        return any(_ok(get(module, name.encode())) for module in self._modules)

    def _found(self, get: _Get, name: str) -> Any:
        """What `get` finds of this name in the first cubin that has it."""
        results = [get(module, name.encode()) for module in self._modules]
        return check(next(filter(_ok, results), results[0]))


class DeviceGraph:
    """What `captured` recorded, instantiated so that a kernel may launch it; `handle` is what the device calls it."""

    def __init__(self, captured: torch.cuda.CUDAGraph) -> None:
        self._captured = captured  # owns the graph's nodes and the memory that they allocate
        for_device = driver.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH
        graph = driver.CUgraph(captured.raw_cuda_graph())
        self._executable = check(driver.cuGraphInstantiate(graph, for_device))
        check(driver.cuGraphUpload(self._executable, torch.cuda.current_stream().cuda_stream))
        self.handle = int(self._executable)

    def launch(self) -> None:
        """Launch it on torch's current stream."""
        check(driver.cuGraphLaunch(self._executable, torch.cuda.current_stream().cuda_stream))
