"""Where rings are that an adapter writes: in the GPU's memory, if all can; with a driver whose memory is the host's."""

import ctypes
import os
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from dualpace.engine.memory import RingMemory
from dualpace.plan import abi
from tests.plans import example
from tests.rdma import copies

GATE = {"tls": {"certificate": "gate.crt", "key": "gate.key"}, "key_file": "frontend.key"}
# Those that take driver or verbs as they are imported.
MODULES = [f"dualpace.engine.{name}" for name in ("device", "gpu_rings", "trial", "placing")]
PLAN = example("qwen2.5-7b-a100", nic={"transport": "rdma", "device": "rxe0", "gate": GATE})


class Names:
    """An enumeration whose members are their names, in order of nothing."""

    def __getattr__(self, name):
        return name


class Driver:
    """CUDA's driver, of a GPU whose memory is the host's. `live` counts what was not given back, by kind.

    The call `fails` does; `attributes` are those of the GPU.
    """

    CUDA_SUCCESS = 0
    CUresult = SimpleNamespace(CUDA_SUCCESS=0)
    CUdevice_attribute = CUstream_flags = CUpointer_attribute = CUmemRangeHandleType = Names()
    CUGPUDirectRDMAWritesOrdering = SimpleNamespace(CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER=100)
    CU_MEMHOSTREGISTER_DEVICEMAP = 2

    def __init__(self):
        self.live, self.fails, self.memory = Counter(), None, {}
        self.attributes = {
            "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED": 1,
            "CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED": 1,
            "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING": 100,
        }

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments):
            if name == self.fails:
                return (1,)
            found = getattr(self, f"_{name}", lambda *_: None)(*arguments)
            return (0,) if found is None else (0, found)

        return call

    def _cuGetErrorName(self, status):
        return b"CUDA_ERROR_TEST"

    def _cuCtxGetDevice(self):
        return 0

    def _cuCtxGetCurrent(self):
        return 1

    def _cuDeviceGetAttribute(self, name, device):
        return self.attributes[name]

    def _cuStreamCreate(self, flags):
        self.live["stream"] += 1
        return 7

    def _cuStreamDestroy(self, stream):
        self.live["stream"] -= 1

    def _cuMemAlloc(self, size):
        self.live["memory"] += 1
        made = (ctypes.c_char * size)()
        self.memory[ctypes.addressof(made)] = made
        return ctypes.addressof(made)

    def _cuMemFree(self, address):
        self.live["memory"] -= 1
        del self.memory[address]

    def _cuMemHostRegister(self, *_):
        self.live["mapping"] += 1

    def _cuMemHostGetDevicePointer(self, address, flags):
        return address

    def _cuMemHostUnregister(self, address):
        self.live["mapping"] -= 1

    def _cuMemGetHandleForAddressRange(self, address, size, kind, flags):
        # What takes the descriptor finds the memory by it.
        copies.EXPORTED[file := os.memfd_create("dma-buf")] = address
        return file

    def _cuMemcpyHtoDAsync(self, to, source, size, stream):
        ctypes.memmove(to, source, size)

    def _cuMemcpyDtoHAsync(self, to, source, size, stream):
        ctypes.memmove(to, source, size)


@pytest.fixture
def driver(monkeypatch):
    """Of a GPU that can do all."""
    driver, bindings = Driver(), ModuleType("cuda.bindings")
    bindings.driver = driver
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "dualpace.engine.verbs", copies)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in MODULES:
        module = import_module(name)
        if hasattr(module, "make_current"):
            monkeypatch.setattr(module, "make_current", lambda: None)
    yield driver
    for name in MODULES:
        del sys.modules[name]


@pytest.fixture
def memory(tmp_path):
    memory = RingMemory(tmp_path / "rings", PLAN, reserved=False)
    yield memory
    memory.close()


def place(memory, plan=PLAN):
    """Whether the rings were in the GPU's memory, and what was said."""
    from dualpace.engine.placing import placed

    said = []
    with placed(memory, plan, said.append) as (address, gpu):
        assert (gpu is None) == (address.value == memory.address)
        if gpu:
            begin = abi.view("RingMemory", plan).rings.offset
            assert gpu.read(0, begin) == ctypes.string_at(memory.address, begin)
            assert not any(gpu.read(begin, 1 << 14))
    return gpu is not None, said


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_rings_are_in_the_gpus_memory_once_the_adapter_has_written_and_read_it(driver, memory):
    before = descriptors()
    assert place(memory) == (True, ["the rings are in GPU memory, which rxe0 has written and read"])
    assert not +driver.live
    assert descriptors() == before


@pytest.mark.parametrize(
    ("attribute", "value", "why"),
    [
        ("GPU_DIRECT_RDMA_SUPPORTED", 0, "the GPU has no GPUDirect RDMA"),
        ("DMA_BUF_SUPPORTED", 0, "its driver exports no dma-buf, which takes the open kernel modules"),
        ("GPU_DIRECT_RDMA_WRITES_ORDERING", 0, "its kernels may see an adapter's writes out of order"),
    ],
)
def test_what_the_gpu_cannot_do_leaves_them_in_host_memory(driver, memory, attribute, value, why):
    driver.attributes[f"CU_DEVICE_ATTRIBUTE_{attribute}"] = value
    assert place(memory) == (False, [f"the rings are in pinned host memory: {why}"])
    assert not +driver.live


CALLS = (
    "cuStreamCreate", "cuMemAlloc", "cuPointerSetAttribute", "cuMemsetD8", "cuMemcpyHtoDAsync", "cuStreamSynchronize",
    "cuMemGetHandleForAddressRange", "cuMemcpyDtoHAsync",
)  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_whatever_fails_they_are_in_host_memory_and_nothing_is_left(driver, memory, call):
    before, driver.fails = descriptors(), call
    assert place(memory) == (False, ["the rings are in pinned host memory: CUDA_ERROR_TEST"])
    assert not +driver.live
    assert descriptors() == before


def refuses(monkeypatch):
    def lend(self, address, size, *, writable=False, fd=None):
        raise copies.LinkError("device", "rxe0: Operation not supported; it takes no dma-buf of this kind")

    monkeypatch.setattr(copies.Endpoint, "lend", lend)


def loses(reads):
    """An adapter whose reads, or else writes, go nowhere."""

    def lose(monkeypatch):
        post = copies.Endpoint.post
        monkeypatch.setattr(
            copies.Endpoint,
            "post",
            lambda self, spans, **options: post(self, [span for span in spans if span.read != reads], **options),
        )

    return lose


@pytest.mark.parametrize(
    ("adapter", "why"),
    [
        (refuses, "rxe0: Operation not supported; it takes no dma-buf of this kind"),
        (loses(reads=False), "rxe0: what it writes into GPU memory does not arrive there"),
        (loses(reads=True), "rxe0: what it reads of GPU memory is not what is there"),
    ],
    ids=["no dma-buf", "no writes", "no reads"],
)
def test_what_the_adapter_cannot_do_leaves_them_in_host_memory(driver, memory, monkeypatch, adapter, why):
    before = descriptors()
    adapter(monkeypatch)
    assert place(memory) == (False, [f"the rings are in pinned host memory: {why}"])
    assert not +driver.live
    assert descriptors() == before


def test_who_asks_for_host_memory_has_it(driver, memory):
    driver.fails = "cuMemAlloc"
    plan = PLAN.model_copy(update={"nic": PLAN.nic.model_copy(update={"memory": "host"})})
    assert place(memory, plan) == (False, ["the rings are in pinned host memory, as nic.memory has it"])
    without = plan.model_copy(update={"nic": None})
    assert place(memory, without) == (False, [])
