"""Rings in the GPU's memory, which an RDMA adapter reads and writes by itself through a dma-buf.

The host's file stays what the launcher and the locks of claims look at; it is shown the engine's status now and then.
"""

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver

from dualpace.engine.device import DeviceError, check
from dualpace.engine.memory import RingMemory
from dualpace.plan import abi
from dualpace.plan.plan import Plan

if TYPE_CHECKING:
    from dualpace.engine.link import Region
    from dualpace.engine.verbs import Endpoint

_STATUS_SECONDS = 0.25
# Allocations of this size and up begin at such a multiple; so does, and ends, what a dma-buf is made of.
_GRAIN = 2 << 20


def refusal() -> str | None:
    """Why the current GPU lets no adapter at its memory, or not in order, as a clause; None if it does."""
    attributes = driver.CUdevice_attribute
    device = check(driver.cuCtxGetDevice())

    def attribute(name: Any) -> int:
        return int(check(driver.cuDeviceGetAttribute(name, device)))

    if not attribute(attributes.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED):
        return "the GPU has no GPUDirect RDMA"
    if not attribute(attributes.CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED):
        return "its driver exports no dma-buf, which takes the open kernel modules"
    # Without order the host would have to flush an adapter's writes before the GPU reads them: for each request.
    owner = driver.CUGPUDirectRDMAWritesOrdering.CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER
    in_order = attribute(attributes.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) >= int(owner)
    return None if in_order else "its kernels may see an adapter's writes out of order"


class GpuRings:
    """The ring memory in the current GPU, with the header and the epoch of `memory`.

    Its reads and writes go by a stream of their own and wait for no kernel. Any thread may ask for them.
    """

    def __init__(self, memory: RingMemory, plan: Plan) -> None:
        """Allocate. Raises DeviceError."""
        self._memory = memory
        self._layout = abi.view("RingMemory", plan)
        self._rings = plan.rings.rings
        self._lock = threading.Lock()
        self._context = check(driver.cuCtxGetCurrent())
        self.size = -(-memory.size // _GRAIN) * _GRAIN
        self._dma_buf = -1
        # What frees is not checked: once a kernel has failed every call fails, and says less than the first that did.
        with ExitStack() as held:
            self._stream = check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
            held.callback(driver.cuStreamDestroy, self._stream)
            self.address = int(check(driver.cuMemAlloc(self.size)))
            held.callback(driver.cuMemFree, self.address)
            # No copy of this memory is left under way when the call for it returns: an adapter works beside them.
            sync = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
            check(driver.cuPointerSetAttribute(True, sync, self.address))
            check(driver.cuMemsetD8(self.address, 0, self.size))
            self.write(0, ctypes.string_at(memory.address, self._layout.rings.offset))
            self._held = held.pop_all()

    def close(self) -> None:
        """Free it; nobody reads or writes there any more."""
        self._held.close()

    def lend(self, endpoint: "Endpoint", offset: int, size: int, *, writable: bool = False) -> "Region":
        """Let the peer of `endpoint` read a part of it, or write too. Raises LinkError, or DeviceError at first."""
        return endpoint.lend(offset, size, writable=writable, fd=self.dma_buf())

    def dma_buf(self) -> int:
        """A descriptor of all of it for other devices' drivers, the same each time. Raises DeviceError."""
        if self._dma_buf < 0:
            kind = driver.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
            self._dma_buf = int(check(driver.cuMemGetHandleForAddressRange(self.address, self.size, kind, 0)))
            self._held.callback(os.close, self._dma_buf)
        return self._dma_buf

    def read(self, offset: int, size: int) -> bytes:
        """What is there now. Raises DeviceError."""
        found = ctypes.create_string_buffer(size)
        self._copy(driver.cuMemcpyDtoHAsync, ctypes.addressof(found), self.address + offset, size)
        return found.raw

    def write(self, offset: int, content: bytes) -> None:
        """Store `content` there. Raises DeviceError."""
        kept = ctypes.create_string_buffer(content, len(content))
        self._copy(driver.cuMemcpyHtoDAsync, self.address + offset, ctypes.addressof(kept), len(content))

    def _copy(self, copy: Callable[..., tuple[Any, ...]], to: int, source: int, size: int) -> None:
        with self._lock:
            check(driver.cuCtxSetCurrent(self._context))
            check(copy(to, source, size, self._stream))
            check(driver.cuStreamSynchronize(self._stream))

    def turn_over(self, ring: int, epoch: int) -> None:
        """What the ring library's function of this name does in memory of the host. Raises DeviceError."""
        each = self._layout.rings.size // self._rings
        begin = self._layout.rings.offset + ring * each
        self.write(begin, epoch.to_bytes(4, "little"))
        self.write(begin + 4, bytes(each - 4))

    def show_status(self) -> None:
        """Copy the engine's status to the host's file. Raises DeviceError."""
        status = self._layout.status
        ctypes.memmove(self._memory.address + status.offset, self.read(status.offset, status.size), status.size)

    @contextmanager
    def showing_status(self) -> Iterator[None]:
        """Do so four times a second until the block ends, and once more then."""
        ended = threading.Event()

        def show() -> None:
            with suppress(DeviceError):
                while not ended.wait(_STATUS_SECONDS):
                    self.show_status()
                self.show_status()

        thread = threading.Thread(target=show, name="status", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
