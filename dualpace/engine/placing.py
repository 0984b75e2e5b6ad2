"""Where the rings of an engine on a GPU are: in pages of the host, or in the GPU's memory if adapter and GPU can."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from dualpace.engine.device import DeviceError, make_current, mapped
from dualpace.engine.gpu_rings import GpuRings, refusal
from dualpace.engine.link import LinkError, Port
from dualpace.engine.memory import RingMemory
from dualpace.engine.provision import Say
from dualpace.plan import abi
from dualpace.plan.plan import Nic, Plan


@contextmanager
def placed(memory: RingMemory, plan: Plan, say: Say) -> Iterator[tuple[ctypes.c_void_p, GpuRings | None]]:
    """The rings as the GPU sees them, until the block ends: the pages of `memory`, or its own where the plan has them.

    These are given up where no adapter can be let at them. With a NIC, it is said where the rings are, and why.
    """
    rings = _where(memory, plan, plan.nic, say) if plan.nic else None
    if rings is None:
        with mapped(memory.address, memory.size) as address:
            yield address, None
        return
    try:
        with rings.showing_status():
            yield ctypes.c_void_p(rings.address), rings
    finally:
        rings.close()


def _where(memory: RingMemory, plan: Plan, nic: Nic, say: Say) -> GpuRings | None:
    """Rings in GPU memory that the adapter has written and read; None if they are not to be there, or cannot be."""
    if nic.memory == "host":
        say("the rings are in pinned host memory, as nic.memory has it")
        return None
    make_current()
    why = refusal()
    if why is None:
        try:
            rings = _tried(memory, plan, nic)
        except (DeviceError, LinkError) as error:
            why = str(error)
        else:
            say(f"the rings are in GPU memory, which {nic.device} has written and read")
            return rings
    say(f"the rings are in pinned host memory: {why}")
    return None


def _tried(memory: RingMemory, plan: Plan, nic: Nic) -> GpuRings:
    """Raises DeviceError or LinkError for what cannot be done."""
    # Only now: verbs are installed where they are needed.
    from dualpace.engine.trial import try_out

    rings = GpuRings(memory, plan)
    try:
        try_out(rings, rings.size, abi.view("RingMemory", plan).rings.offset, Port(nic.device, nic.port, nic.gid_index))
    except BaseException:
        rings.close()
        raise
    return rings
