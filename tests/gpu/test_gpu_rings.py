"""Rings in the GPU's memory, up to where an adapter is needed: the protocol runs over copies in its place."""

import os
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from dualpace.engine.memory import RingMemory
from dualpace.engine.ring import FrontendRing, SamplingParams
from dualpace.plan import abi
from dualpace.plan.structs import Finish
from tests.rdma.copies import transport

from .serving import VOCABULARY, check_at_rest, check_greedy, serve

pytestmark = [pytest.mark.gpu, pytest.mark.parametrize("served", [("llama", "fp32")], indirect=True, ids="-".join)]


@pytest.fixture
def memory(served):
    torch.zeros(1, device="cuda")
    with TemporaryDirectory(dir="/dev/shm") as folder:
        memory = RingMemory(Path(folder) / "rings", served.plan)
        yield memory
        memory.close()


@pytest.fixture
def rings(memory, served):
    from dualpace.engine.gpu_rings import GpuRings

    rings = GpuRings(memory, served.plan)
    yield rings
    rings.close()


def test_the_memory_is_exported_whole_unless_the_gpu_says_that_it_cannot(rings, memory):
    from dualpace.engine.device import DeviceError
    from dualpace.engine.gpu_rings import refusal

    why = refusal()
    if why and "dma-buf" in why:
        with pytest.raises(DeviceError):
            rings.dma_buf()
        return
    exported = rings.dma_buf()
    assert "dmabuf" in str(Path(f"/proc/self/fd/{exported}").readlink())
    assert os.lseek(exported, 0, os.SEEK_END) == rings.size >= memory.size
    assert rings.dma_buf() == exported


def test_it_begins_with_the_files_header_and_epoch_and_is_empty_beyond(rings, memory, served):
    begin = abi.view("RingMemory", served.plan).rings.offset
    assert rings.read(0, begin) == Path(memory.path).read_bytes()[:begin]
    assert not any(rings.read(begin, memory.size - begin))


def test_a_ring_that_is_turned_over_has_nothing_left_but_its_new_epoch(rings, memory, served):
    layout = abi.view("RingMemory", served.plan)
    begin, each = layout.rings.offset, layout.rings.size // served.plan.rings.rings
    rings.write(begin, b"\xff" * each)
    rings.turn_over(0, 1234)
    assert rings.read(begin, each) == (1234).to_bytes(4, "little") + bytes(each - 4)


@pytest.mark.parametrize("driver", ["host", "device"])
def test_an_engine_serves_rings_in_its_own_memory(rings, memory, served, driver):
    import ctypes

    from dualpace.engine.device import Cubin
    from dualpace.engine.drive import GpuEngine

    on_device = {name: tensor.cuda() for name, tensor in served.weights.items()}
    address = ctypes.c_void_p(rings.address)
    engine = GpuEngine(served.plan, on_device, Cubin(*served.cubins), address, VOCABULARY, driver)
    carried = transport(served.plan, 0, memory.path.parent, rings.read, rings.write, lambda: rings.turn_over(0, 2))
    engine.start()
    frontend = FrontendRing(served.ring, carried.path, 0, carried)
    try:
        source = random.Random(5)
        prompts = [[source.randrange(VOCABULARY) for _ in range(source.choice((1, 9, 40)))] for _ in range(20)]
        requests = {tag: (prompt, SamplingParams(max_tokens=16, temperature=0)) for tag, prompt in enumerate(prompts)}
        events = serve(engine, frontend, driver, requests, {})
        for tag, prompt in enumerate(prompts):
            assert events[tag][-1].finish is Finish.LENGTH
            check_greedy(served, prompt, [event.token for event in events[tag]])
        if driver == "device":
            check_at_rest(frontend)
        with rings.showing_status():
            pass
        status = abi.view("RingMemory", served.plan).from_address(memory.address).status
        assert status.counters.finished == len(prompts)
    finally:
        engine.stop()
        frontend.close()
