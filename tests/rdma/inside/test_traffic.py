"""What requests and tokens cost on the wire: as few operations, bytes and doorbells as there can be."""

import ctypes
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from dualpace.engine import gate
from dualpace.engine import remote as transport
from dualpace.engine.link import LinkError
from dualpace.engine.ring import SamplingParams
from dualpace.plan import abi
from tests.scheduler.plans import ROOMY

from .steps import LONG, PROMPT, step_until, wait_for

RECORD, COUNTS, ACKNOWLEDGEMENT = 64, 24, 4


@pytest.fixture
def quiet(monkeypatch):
    """The engine's status is not looked at, so that what is counted is the ring's alone."""
    monkeypatch.setattr(transport, "_STATUS_S", 1e9)


@pytest.fixture
def toy(quiet, remote):
    """An engine whose frontend has a request under way."""
    toy = remote(ROOMY)
    request = toy.submit(PROMPT, LONG)
    step_until(toy, lambda: request.tokens)
    return toy


def posted(toy, act):
    """What `act` posts."""
    traffic = toy.rings[0].uplink.traffic
    before = replace(traffic)
    act()
    names = ("writes", "reads", "written_bytes", "read_bytes", "doorbells")
    return tuple(getattr(traffic, name) - getattr(before, name) for name in names)


def span_bytes(prompt):
    params = ctypes.sizeof(abi.fixed_view("RequestParams"))
    return params + 4 * len(prompt) + 8 * (len(prompt) // ROOMY.attention.page_size)


@pytest.mark.parametrize("length", [5, 40])
def test_a_request_is_three_writes_and_one_doorbell(toy, length):
    prompt = [3] * length
    writes = posted(toy, lambda: toy.submit(prompt, SamplingParams(max_tokens=1)))
    assert writes == (3, 0, span_bytes(prompt) + RECORD, 0, 1)


def test_an_abort_is_two_writes_and_one_doorbell(toy):
    (request,) = toy.requests.values()
    assert posted(toy, lambda: toy.abort(request)) == (2, 0, RECORD, 0, 1)


def test_a_look_without_news_is_one_read(toy):
    toy.read()
    assert posted(toy, toy.read) == (0, 1, 0, COUNTS, 1)


def test_the_tokens_of_a_step_are_two_reads_and_one_acknowledgement(toy):
    others = [toy.submit(PROMPT, LONG) for _ in range(3)]
    step_until(toy, lambda: all(request.tokens for request in others))
    toy.read()
    toy.step()
    rows = 4
    assert posted(toy, toy.read) == (0, 2, 0, COUNTS + rows * RECORD, 2)
    assert posted(toy, toy.read) == (1, 1, ACKNOWLEDGEMENT, COUNTS, 1)


def test_log_probabilities_cost_one_read_more(toy):
    request = toy.submit(PROMPT, replace(LONG, logprobs=3))
    step_until(toy, lambda: request.tokens)
    toy.read()
    toy.step()
    tops = ctypes.sizeof(abi.fixed_view("TopLogprobs"))
    (_, reads, _, read_bytes, doorbells) = posted(toy, toy.read)
    assert (reads, read_bytes, doorbells) == (3, COUNTS + 2 * RECORD + tops, 3)


def packets(device, counter):
    return int(Path(f"/sys/class/infiniband/{device}/ports/1/hw_counters/{counter}").read_text())


def test_the_devices_carry_it(toy):
    before = {(device, way): packets(device, way) for device in ("rxe0", "rxe1") for way in ("sent_pkts", "rcvd_pkts")}
    request = toy.submit(PROMPT, LONG)
    step_until(toy, lambda: request.finish)
    for (device, way), count in before.items():
        assert packets(device, way) > count, (device, way)


SILENT = ("rdma_sends", "rdma_recvs")  # of operations that a receive answers


def gates_threads():
    """How often each thread of the gate has run."""
    tasks = [thread.native_id for thread in threading.enumerate() if thread.name == "gate"]
    lines = [Path(f"/proc/self/task/{task}/status").read_text().splitlines() for task in tasks]
    return [[line for line in task if "ctxt_switches" in line] for task in lines]


def next_packet(end):
    """The number of the packet that `end` would ask something with."""
    from pyverbs import enums

    attributes, _ = end._pair.query(enums.IBV_QP_SQ_PSN)
    return attributes.sq_psn


def test_the_engines_side_does_nothing_for_requests(quiet, remote, monkeypatch):
    """It has posted no operation and no receive, and not a thread of the gate has run."""
    ends = []

    class Kept(gate.Endpoint):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            ends.append(self)

    monkeypatch.setattr(gate, "Endpoint", Kept)
    monkeypatch.setattr(gate, "_WATCH_S", 3600.0)
    toy = remote(ROOMY)
    _, *ends = ends  # the first was to see whether there is a device
    assert len(ends) == len(toy.rings)
    ran = [gates_threads()]

    def all_wait():
        ran.append(gates_threads())
        return ran[-1] == ran[-2]

    wait_for(all_wait, pause=0.2)
    counts = {(device, name): packets(device, name) for device in ("rxe0", "rxe1") for name in SILENT}
    sent = packets("rxe1", "sent_pkts")
    requests = [toy.submit(PROMPT, LONG, ring) for _ in range(4) for ring in range(len(toy.rings))]
    step_until(toy, lambda: all(request.finish for request in requests))
    assert packets("rxe1", "sent_pkts") > sent + len(requests)
    assert {key: packets(*key) for key in counts} == counts
    assert gates_threads() == ran[-1]
    for end in ends:
        assert next_packet(end) == end.peer.psn
        assert end._traffic.doorbells == 0
    asking = [ring.transport._connection.endpoint for ring in toy.rings]
    assert all(next_packet(end) != end.peer.psn for end in asking)


def test_the_engine_has_posted_no_receive(toy):
    """So a message, which would be code's to read there, finds none."""
    from pyverbs import enums
    from pyverbs.wr import SGE, SendWR

    carried = toy.rings[0].transport
    end = carried._connection.endpoint
    element = SGE(ctypes.addressof(carried._first_line), 8, carried._first_key)
    end._pair.post_send(SendWR(opcode=enums.IBV_WR_SEND, num_sge=1, sg=[element], send_flags=enums.IBV_SEND_SIGNALED))
    with pytest.raises(LinkError, match="the peer does not answer"):
        end.wait(end._posted + 1, lambda: False)
