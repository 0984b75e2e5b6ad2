"""What goes wrong with a connection ends that connection's requests and no other, is counted, and leaves nothing."""

import contextlib
import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dualpace.engine.link import Port
from dualpace.engine.ring import Finish, RingError
from tests.rdma import prepared
from tests.scheduler.plans import TIGHT

from .steps import again, at_rest, comes_in, ends, is_free, memory_of, other_goes_on, running, wait_for


@pytest.fixture
def toy(remote, monkeypatch):
    """An engine whose gate does not look at connections by itself: their frontends find first what is wrong."""
    monkeypatch.setattr("dualpace.engine.gate._WATCH_S", 3600.0)
    return remote(TIGHT)


def test_an_index_without_an_address_is_refused(toy):
    uplink = toy.uplink(port=Port("rxe1", 1, 3))
    uplink.fetch()
    with pytest.raises(RingError, match="GID 3 of port 1 is empty; choose another gid_index"):
        uplink.claim()
    assert uplink.traffic.failures == {"local": 1}


def endpoint(toy):
    return toy.rings[0].transport._connection.endpoint


def link_goes_down():
    subprocess.run(["ip", "link", "set", "v1", "down"], check=True)


def packets_are_lost():
    """On their way to the engine, as with a cable cut behind a switch: to an address that nobody has."""
    to_nobody = ["ip", "neigh", "replace", "10.7.0.0", "dev", "v1", "lladdr", "02:00:00:00:00:99", "nud", "permanent"]
    subprocess.run(to_nobody, check=True)


def link_is_back():
    """With what the kernel has forgotten meanwhile."""
    subprocess.run(["ip", "link", "set", "v1", "up"], check=True)
    for here, there in ((0, 1), (1, 0)):
        address = Path(f"/sys/class/net/v{there}/address").read_text().strip()
        route = ["ip", "route", "replace", f"10.7.0.{there}", "dev", f"v{here}", "table", f"20{here}"]
        neighbour = ["ip", "neigh", "replace", f"10.7.0.{there}", "dev", f"v{here}", "lladdr", address]
        subprocess.run(route, check=True)
        subprocess.run([*neighbour, "nud", "permanent"], check=True)
    wait_for(lambda: "ACTIVE" in Path("/sys/class/infiniband/rxe1/ports/1/state").read_text())


@pytest.mark.parametrize(
    # Soft-RoCE may go on trying for longer than anybody waits.
    ("cut", "faults"),
    [(link_goes_down, {"queue"}), (packets_are_lost, {"unreachable", "timeout"})],
)
def test_a_wire_that_is_cut(toy, cut, faults):
    running(toy)
    cut()
    try:
        assert ends(toy.rings[0]) == [Finish.ENGINE_GONE]
        assert toy.rings[0].uplink.traffic.faults.total() == 1
        assert set(toy.rings[0].uplink.traffic.faults) <= faults
        assert not toy.rings[0].status().alive
    finally:
        link_is_back()
    again(toy)


def fail(toy):
    """Have the queue pair fail, as an adapter may."""
    from pyverbs import enums
    from pyverbs.qp import QPAttr

    endpoint(toy)._pair.modify(QPAttr(qp_state=enums.IBV_QPS_ERR), enums.IBV_QP_STATE)


def test_a_queue_pair_that_fails(toy):
    running(toy)
    fail(toy)
    assert ends(toy.rings[0]) == [Finish.ENGINE_GONE]
    assert toy.rings[0].uplink.traffic.faults["queue"] == 1
    other_goes_on(toy)
    again(toy)


def beyond(toy):
    """Write behind the ring what its arena begins with."""
    transport = toy.rings[0].transport
    memory = transport._connection.attached.memory
    write = transport._span(ctypes.addressof(transport._view.arena), 8)
    transport._connection.endpoint.post([write._replace(remote=memory.address + memory.size)])


def test_a_frontend_that_goes_beyond_its_ring_is_cut_off(toy):
    running(toy)
    other = memory_of(toy).rings[1]
    before = bytes(other.control)
    beyond(toy)
    assert ends(toy.rings[0]) == [Finish.ENGINE_GONE]
    assert toy.rings[0].uplink.traffic.faults["access"] == 1
    assert bytes(other.control) == before
    other_goes_on(toy)
    again(toy)


def test_the_engines_status_cannot_be_written(toy):
    transport = toy.rings[0].transport
    (_, theirs, _) = transport._status_keys
    transport._view.arena[0] = 0x5A5A5A5A
    write = transport._span(ctypes.addressof(transport._view.arena), 8)
    before = bytes(memory_of(toy).status)
    transport._connection.endpoint.post([write._replace(remote=theirs.address, rkey=theirs.rkey)])
    wait_for(lambda: toy.rings[0].wait(0.05) or not toy.rings[0].status().alive)
    assert toy.rings[0].uplink.traffic.faults["access"] == 1
    assert bytes(memory_of(toy).status) == before


def test_a_queue_pair_that_the_engine_finds_failed_is_cut_off(remote):
    """A peer that stays although its queue pair has failed."""
    toy = remote(TIGHT)
    running(toy)
    beyond(toy)
    wait_for(lambda: any("its queue pair has failed" in line for line in toy.said))
    other_goes_on(toy)


FRONTEND = """
import sys, time
from pathlib import Path
from dualpace.engine.ring import SamplingParams
from dualpace.engine.uplink import Uplink
from dualpace.engine.link import Port
port, key_file, authority, folder = sys.argv[1:]
uplink = Uplink("127.0.0.1", int(port), key_file, authority, Port("rxe1", 1, 1), Path(folder), 0)
uplink.fetch()
ring = uplink.claim()
ring.submit(1, [5, 17, 60, 2, 44], SamplingParams(max_tokens=60))
while not ring.wait(0.1):
    pass
print("served", flush=True)
time.sleep(600)
"""


def is_killed(toy):
    """A frontend that is a process of its own, in the midst of a request."""
    folder = toy.folder.with_name("killed")
    folder.mkdir(exist_ok=True)
    files = (toy.secrets / prepared.KEY, toy.secrets / prepared.CERTIFICATE, folder)
    command = [sys.executable, "-c", FRONTEND, str(toy.gate.address[1]), *map(str, files)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as frontend:
        os.set_blocking(frontend.stdout.fileno(), False)

        def is_served():
            assert frontend.poll() is None
            toy.step()
            return "served" in (frontend.stdout.readline() or "")

        wait_for(is_served, pause=0)
        assert not toy.scheduler.at_rest()
        frontend.kill()
    wait_for(lambda: is_free(toy, 0))


def leaves(toy):
    toy.rings[0].close()


def goes_beyond(toy):
    beyond(toy)
    wait_for(lambda: toy.rings[0].wait(0.1) or not toy.rings[0].status().alive)


def fails(toy):
    fail(toy)
    wait_for(lambda: toy.rings[0].wait(0.1) or not toy.rings[0].status().alive)


def held(toy):
    """What connections take: objects of the devices, descriptors, threads, files; and rows and pages of the engine."""
    objects = subprocess.run(["rdma", "resource", "show"], check=True, capture_output=True, text=True).stdout
    descriptors = sorted(os.path.realpath(file) for file in Path("/proc/self/fd").iterdir())
    files = sorted(str(path) for path in toy.folder.rglob("ring*"))
    counters = memory_of(toy).status
    rows = counters.running, counters.waiting, counters.free_pages == counters.total_pages
    names = sorted(thread.name for thread in threading.enumerate())
    return objects, [file for file in descriptors if ":[" not in file], len(descriptors), files, names, rows


@pytest.mark.parametrize("end", [leaves, is_killed, goes_beyond, fails])
def test_nothing_is_left_of_a_connection_that_has_ended(toy, end):
    uplink = toy.rings[0].uplink
    toy.rings[0].close()
    wait_for(lambda: is_free(toy, 0))
    at_rest(toy)
    before = held(toy)
    for _ in range(2):
        if end is not is_killed:
            toy.rings[0] = comes_in(uplink)
            running(toy)
            assert held(toy) != before
        end(toy)
        toy.rings[0].close()
        toy.requests.clear()
        other_goes_on(toy)
        toy.requests.clear()
        at_rest(toy)
        with contextlib.suppress(AssertionError):
            wait_for(lambda: held(toy) == before)
        assert held(toy) == before
