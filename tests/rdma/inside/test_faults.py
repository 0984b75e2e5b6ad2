"""What goes wrong with a connection ends that connection's requests and no other, is counted, and leaves nothing."""

import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dualpace.engine.gate import _STRANGERS
from dualpace.engine.link import Port
from dualpace.engine.ring import Finish, RingError, SamplingParams
from dualpace.engine.uplink import LaterError
from dualpace.plan import abi
from dualpace.plan.structs import RecordType
from tests.scheduler.plans import TIGHT
from tests.scheduler.toy import continuation

from .conftest import PREPARED
from .test_conformance import PROMPT, step_until

SECONDS = 60
LONG = SamplingParams(max_tokens=60)


def wait_for(done):
    end = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < end, "did not come about"
        time.sleep(0.02)


def ends(ring):
    """The finishes of the requests of `ring`, of which it hears the last now."""
    found = []
    wait_for(lambda: found or found.extend(event.finish for event in ring.wait(0.05) if event.finish))
    return found


def other_goes_on(toy, ring=1):
    """A request of another frontend gets its whole text."""
    request = toy.submit(PROMPT, SamplingParams(max_tokens=20), ring)
    end = time.monotonic() + SECONDS
    while not request.finish:
        assert time.monotonic() < end
        toy.step()
        toy.read(ring)
    assert (request.tokens, request.finish) == continuation(toy.plan, PROMPT, request.params)


def at_rest(toy):
    end = time.monotonic() + SECONDS
    while not toy.scheduler.at_rest():
        assert time.monotonic() < end
        toy.step()


def again(toy, ring=0):
    """Its frontend comes back, and is served in a new epoch."""
    uplink, before = toy.rings[ring].uplink, toy.memory_view().rings[ring].control.epoch
    toy.rings[ring].close()
    toy.requests.clear()
    claimed = []

    def claim():
        try:
            claimed.append(uplink.claim())
        except RingError:  # what its last connection left is being ended
            return False
        return True

    wait_for(claim)
    (toy.rings[ring],) = claimed
    toy.rings[ring].uplink = uplink

    def open_anew():
        epoch = toy.memory_view().rings[ring].control.epoch
        return epoch % 2 == 1 and epoch != before  # an open ring's is odd, and comes in no order

    wait_for(open_anew)
    request = toy.submit(PROMPT, SamplingParams(max_tokens=5), ring)
    step_until(toy, lambda: request.finish)
    assert request.finish is Finish.LENGTH
    at_rest(toy)


@pytest.fixture
def toy(remote):
    toy = remote(TIGHT)
    toy.memory_view = lambda: abi.view("RingMemory", toy.plan).from_address(toy.memory.address)
    return toy


def running(toy):
    request = toy.submit(PROMPT, LONG)
    step_until(toy, lambda: request.tokens)
    return request


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


FRONTEND = """
import sys, time
from pathlib import Path
from dualpace.engine.ring import SamplingParams
from dualpace.engine.uplink import Uplink
from dualpace.engine.gate import _STRANGERS
from dualpace.engine.link import Port
port, folder, key, ca = sys.argv[1:]
uplink = Uplink("127.0.0.1", int(port), key.encode(), ca, Port("rxe1", 1, 1), Path(folder), 0)
uplink.fetch()
ring = uplink.claim()
ring.submit(1, [5, 17, 60, 2, 44], SamplingParams(max_tokens=60))
while not ring.wait(0.1):
    pass
print("served", flush=True)
time.sleep(600)
"""


def test_a_frontend_that_is_killed(toy, tmp_path):
    toy.rings[0].close()
    wait_for(lambda: any("ring 0 is free again" in line for line in toy.said))
    toy.said.clear()
    key = (PREPARED / "frontend.key").read_text().strip()
    command = [sys.executable, "-c", FRONTEND, str(toy.gate.address[1]), tmp_path, key, PREPARED / "gate.crt"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as frontend:
        os.set_blocking(frontend.stdout.fileno(), False)
        end = time.monotonic() + SECONDS
        while "served" not in (frontend.stdout.readline() or ""):
            assert time.monotonic() < end
            toy.step()
        frontend.send_signal(signal.SIGKILL)
    other_goes_on(toy)
    toy.requests.clear()
    at_rest(toy)
    wait_for(lambda: any("ring 0 is free again" in line for line in toy.said))


def test_an_engine_that_goes(toy):
    running(toy)
    toy.gate.close()
    assert ends(toy.rings[0]) == [Finish.ENGINE_GONE]
    assert toy.rings[0].uplink.traffic.faults["closed"] == 1
    with pytest.raises(LaterError):
        toy.rings[0].uplink.claim()
    toy.gate.close = lambda: None


def test_a_queue_pair_that_fails(toy):
    from pyverbs import enums
    from pyverbs.qp import QPAttr

    running(toy)
    endpoint(toy)._pair.modify(QPAttr(qp_state=enums.IBV_QPS_ERR), enums.IBV_QP_STATE)
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
    other = toy.memory_view().rings[1]
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
    before = bytes(toy.memory_view().status)
    transport._connection.endpoint.post([write._replace(remote=theirs.address, rkey=theirs.rkey)])
    wait_for(lambda: toy.rings[0].wait(0.05) or not toy.rings[0].status().alive)
    assert toy.rings[0].uplink.traffic.faults["access"] == 1
    assert bytes(toy.memory_view().status) == before


def test_a_queue_pair_that_the_engine_finds_failed_is_cut_off(toy):
    """A peer that stays although its queue pair has failed."""
    running(toy)
    beyond(toy)
    wait_for(lambda: any("its queue pair has failed" in line for line in toy.said))
    other_goes_on(toy)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"key": b"another-key-of-that-length"}, "the key is not that of nic.gate.key_file"),
        ({"authority": None}, "--ca FILE trusts the certificate"),
        ({"ring": 2}, "there are 2, numbered from 0; raise nic.rings"),
        ({"ring": 1}, "ring 1 is in use"),
        ({"port": Port("rxe7", 1, 1)}, "rxe7: .*name one that `ibv_devices` lists"),
        ({"port": Port("rxe1", 1, 3)}, "GID 3 of port 1 is empty"),
    ],
    ids=["key", "certificate", "no such ring", "ring in use", "no such device", "no such address"],
)
def test_who_cannot_come_in_is_told_why(toy, changes, words):
    uplink = toy.uplink(**changes)

    def come_in():
        uplink.fetch()
        uplink.claim()

    with pytest.raises(RingError, match=words):
        come_in()


def test_a_ring_that_is_in_use_may_be_free_later(toy):
    uplink = toy.uplink()
    uplink.fetch()
    with pytest.raises(LaterError, match=r"every ring is in use; raise nic.rings"):
        uplink.claim()
    toy.rings[0].close()
    wait_for(lambda: any("ring 0 is free again" in line for line in toy.said))
    uplink.claim().close()


def test_another_layout_is_refused(toy, monkeypatch):
    monkeypatch.setattr("dualpace.engine.uplink.layout_hash", lambda plan: "00000000deadbeef")
    uplink = toy.uplink()
    uplink.fetch()
    with pytest.raises(RingError, match=r"layout 00000000deadbeef, the engine's is [0-9a-f]{16}: use one version"):
        uplink.claim()


def test_a_record_of_an_epoch_that_is_over_is_not_read(toy):
    request = running(toy)
    transport = toy.rings[0].transport
    record = transport._view.submits[1]
    ctypes.memmove(ctypes.addressof(record), ctypes.addressof(transport._view.submits[0]), ctypes.sizeof(record))
    record.flag = (transport._control.epoch - 2) << 32 | 2
    transport._connection.endpoint.post(transport._record(record))
    step_until(toy, lambda: request.finish)
    assert request.finish is Finish.LENGTH
    assert toy.rings[1].status().accepted == 1


@pytest.mark.parametrize(("field", "value"), [("arena_words", 1), ("arena_begin", 1 << 31), ("type", RecordType.ABORT)])
def test_a_forged_record_ends_with_an_error_and_no_other_request_does(toy, field, value):
    request = running(toy)
    transport = toy.rings[0].transport
    record = transport._view.submits[1]
    ctypes.memmove(ctypes.addressof(record), ctypes.addressof(transport._view.submits[0]), ctypes.sizeof(record))
    setattr(record, field, value)
    record.tag, record.flag = 99, transport._control.epoch << 32 | 2
    transport._connection.endpoint.post(transport._record(record))
    forged = []

    def forged_ends():
        toy.step()
        for event in toy.rings[0].wait(0):
            forged.append(event) if event.tag == 99 else toy.requests[event.tag].take(event)
        return forged

    wait_for(forged_ends)
    assert [event.finish for event in forged] == [Finish.ERROR]
    step_until(toy, lambda: request.finish)
    assert request.finish is Finish.LENGTH
    assert toy.memory_view().status.counters.malformed == 1
    at_rest(toy)


@pytest.mark.parametrize(("count", "fault"), [(1, "torn"), (1 << 20, "forged")])
def test_a_count_without_records(toy, count, fault):
    running(toy)
    control = toy.memory_view().rings[0].control
    control.token_written = control.token_written + count
    assert ends(toy.rings[0]) == [Finish.ENGINE_GONE]
    assert toy.rings[0].uplink.traffic.faults[fault] == 1
    other_goes_on(toy)


def test_a_frontend_that_talks_is_cut_off(toy):
    running(toy)
    toy.rings[0].transport._connection.control.send(b"x")
    assert ends(toy.rings[0]) == [Finish.ENGINE_GONE]
    assert any("cut off for what it said" in line for line in toy.said)
    again(toy)


def test_nothing_is_left_of_connections_that_have_ended(toy):
    def held():
        resources = subprocess.run(["rdma", "resource", "show"], check=True, capture_output=True, text=True).stdout
        return resources, len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    def settled():
        last = None
        while (now := held()) != last:
            last = now
            time.sleep(1)
        return now

    again(toy)
    before = settled()
    for _ in range(3):
        beyond(toy)
        wait_for(lambda: toy.rings[0].wait(0.1) or not toy.rings[0].status().alive)
        again(toy)
    wait_for(lambda: held() == before)


def test_strangers_at_the_gate_are_sent_away(toy):
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"", bytes(1000)):
        with socket.create_connection(toy.gate.address) as stranger:
            stranger.sendall(said)
    wait_for(lambda: toy.gate._ends["greeting"] == 3)
    other_goes_on(toy)


def test_strangers_keep_no_frontend_out(toy):
    toy.rings[0].close()
    silent = [socket.create_connection(toy.gate.address) for _ in range(_STRANGERS + 8)]
    try:
        wait_for(lambda: toy.gate._ends["greeting"] >= 1)
        again(toy)
    finally:
        for stranger in silent:
            stranger.close()


def test_silence_does_not_hold_up_the_engines_end(toy):
    running(toy)
    with socket.create_connection(toy.gate.address), socket.create_connection(toy.gate.address) as dripping:
        dripping.send(b"\x16")
        wait_for(lambda: len(toy.gate._strangers) == 2)
        begin = time.monotonic()
        toy.gate.close()
        assert time.monotonic() - begin < 2
    toy.gate.close = lambda: None


def test_a_connection_that_cannot_be_accepted_is_not_the_last(toy):
    listener = toy.gate._listener

    class Failing:
        fileno = listener.fileno

        def accept(self):
            toy.gate._listener = listener
            listener.accept()[0].close()
            raise OSError(errno.EMFILE, "Too many open files")

    toy.gate._listener = Failing()
    for _ in range(2):
        socket.create_connection(toy.gate.address).close()
    wait_for(lambda: toy.gate._ends["accept"] == 1)
    again(toy)
