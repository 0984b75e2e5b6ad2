"""Ring memory: who may make, claim and map it, and what either side learns of the other's death."""

import ctypes
import math
import os
import resource
import threading
import time

import pytest

from dualpace.engine.doorbell import Doorbell
from dualpace.engine.memory import RingMemory, RingMemoryError
from dualpace.engine.ring import Finish, FrontendRing, RingError, SamplingParams
from dualpace.engine.scheduler import HostScheduler, LayoutError
from dualpace.plan import abi
from dualpace.plan.structs import RecordType

from .plans import ROOMY, TIGHT
from .toy import Toy, random_run

PROMPT = [5, 17, 60, 2, 44]


@pytest.fixture
def memory(tmp_path):
    memory = RingMemory(tmp_path / "rings", ROOMY)
    yield memory
    memory.close()


def test_the_file_is_private_and_goes_with_its_engine(tmp_path):
    memory = RingMemory(tmp_path / "rings", ROOMY)
    assert memory.path.stat().st_mode & 0o777 == 0o600
    assert memory.path.stat().st_size == abi.ring_bytes(ROOMY.rings) == ROOMY.rings.bytes
    memory.close()
    assert list(tmp_path.iterdir()) == []


def test_a_second_engine_is_refused(memory):
    with pytest.raises(RingMemoryError, match="another engine serves these rings"):
        RingMemory(memory.path, ROOMY)


def test_rings_of_an_engine_that_died_are_replaced(memory, tmp_path):
    saved = tmp_path / "saved"
    saved.write_bytes(memory.path.read_bytes())
    again = RingMemory(saved, TIGHT)
    assert saved.stat().st_size == TIGHT.rings.bytes
    again.close()


def test_an_engines_epoch_follows_that_of_the_one_before(memory, libraries, tmp_path):
    saved = tmp_path / "saved"
    saved.write_bytes(memory.path.read_bytes())
    again = RingMemory(saved, ROOMY)
    rings = [FrontendRing(libraries(ROOMY).ring, path) for path in (memory.path, saved)]
    assert [ring.status().epoch for ring in rings] == [1, 2]
    for closing in (*rings, again):
        closing.close()


@pytest.mark.parametrize("make", [lambda p: p.write_text("mine"), lambda p: p.symlink_to("/etc/hostname"), os.mkfifo])
def test_what_is_not_rings_is_left_alone(tmp_path, make):
    path = tmp_path / "rings"
    make(path)
    before = path.lstat()
    with pytest.raises(RingMemoryError, match="another path"):
        RingMemory(path, ROOMY)
    assert os.path.samestat(path.lstat(), before)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_system_without_room_is_named_with_what_is_needed(tmp_path):
    huge = ROOMY.model_copy(update={"rings": ROOMY.rings.model_copy(update={"arena_words": 1 << 46})})
    with pytest.raises(RingMemoryError, match=r"the rings need \d+ bytes .* lower nic.rings or nic.slots"):
        RingMemory(tmp_path / "rings", huge)
    assert list(tmp_path.iterdir()) == []


def test_a_ring_is_claimed_once(memory, libraries):
    library = libraries(ROOMY).ring
    ring = FrontendRing(library, memory.path)
    with pytest.raises(RingError, match="ring 0 is in use by another frontend"):
        FrontendRing(library, memory.path)
    ring.close()
    FrontendRing(library, memory.path).close()


@pytest.mark.parametrize(
    ("plan", "ring", "words"),
    [(ROOMY, 1, "ring 1: there are 1, numbered from 0"), (TIGHT, 0, "start engine and frontend from one bundle")],
    ids=["no such ring", "another layout"],
)
def test_what_does_not_fit_is_not_claimed(memory, libraries, plan, ring, words):
    with pytest.raises(RingError, match=words):
        FrontendRing(libraries(plan).ring, memory.path, ring)


def test_a_file_that_is_absent_or_no_rings_is_refused(libraries, tmp_path):
    with pytest.raises(RingError, match="start the engine first"):
        FrontendRing(libraries(ROOMY).ring, tmp_path / "absent")
    (tmp_path / "text").write_text("x" * 5000)
    with pytest.raises(RingError, match="no file of rings"):
        FrontendRing(libraries(ROOMY).ring, tmp_path / "text")


def test_an_engine_of_another_layout_is_refused(memory, libraries):
    with pytest.raises(LayoutError, match="build it again"):
        HostScheduler(libraries(TIGHT).engine, memory, ROOMY)


def test_requests_of_an_engine_that_is_gone_end(memory, libraries):
    ring = FrontendRing(libraries(ROOMY).ring, memory.path)
    assert ring.status().alive
    assert ring.submit(7, PROMPT, SamplingParams(max_tokens=3))
    assert ring.wait(0) == []
    memory.close()
    memory.close = lambda: None
    assert not ring.status().alive
    (event,) = ring.wait(0)
    assert (event.tag, event.finish) == (7, Finish.ENGINE_GONE)
    assert ring.wait(0) == []
    ring.close()


def test_what_was_said_before_stopping_is_still_heard(toys):
    toy = toys(ROOMY)
    request = toy.submit(PROMPT, SamplingParams(max_tokens=9))
    toy.step()
    toy.step()
    toy.scheduler.announce(ready=True, stopped=True)
    toy.read()
    assert (len(request.tokens), request.finish) == (1, Finish.NONE)
    assert toy.rings[0].status().stopped
    (event,) = toy.rings[0].wait(0)
    assert event.finish is Finish.ENGINE_GONE


def test_a_frontend_that_closes_leaves_nothing_running(toys):
    toy = toys(ROOMY)
    for _ in range(9):
        toy.submit(PROMPT, SamplingParams(max_tokens=60))
        toy.step()
    toy.rings[0].close()
    assert toy.scheduler.wait(0)
    toy.step()
    assert toy.scheduler.at_rest()


def test_a_new_frontend_starts_afresh_and_the_old_ones_requests_are_freed(toys, libraries):
    toy = toys(ROOMY)
    for _ in range(9):
        toy.submit(PROMPT, SamplingParams(max_tokens=60))
        toy.step()
    toy.rings[0].close()
    toy.rings[0] = FrontendRing(libraries(ROOMY).ring, toy.memory.path)
    toy.requests.clear()
    request = toy.submit(PROMPT, SamplingParams(max_tokens=5))
    toy.step()
    assert toy.rings[0].status().running == 1
    toy.drain()
    toy.check()
    assert len(request.tokens) == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("type", RecordType.ABORT),
        ("arena_begin", 1 << 31),
        ("arena_words", 1),
        ("arena_words", 0xFFFFFFFF),
        ("prompt_tokens", 0),
        ("prompt_tokens", 0xFFFFFFFF),
        ("stop_count", 0xFFFFFFFF),
        ("bias_count", 0xFFFFFFFF),
        ("max_tokens", 0xFFFFFFFF),
        ("top_p", float("nan")),
        ("logprobs", 22),
        ("repetition_penalty", 0.0),
        ("priority", 256),
        ("prompt", 0x7FFFFFFF),
        ("prompt", 0xFFFFFFFF),
    ],
)
def test_a_record_that_no_ring_library_writes_ends_with_an_error(toys, name, value):
    toy = toys(ROOMY)
    good = toy.submit([1] * 20, SamplingParams(max_tokens=5))
    bad = toy.submit(PROMPT, SamplingParams(max_tokens=5))
    memory = abi.view("RingMemory", ROOMY).from_address(toy.memory.address)
    record = memory.rings[0].submits[1]
    span = ctypes.addressof(memory.rings[0].arena) + 4 * record.arena_begin
    if name == "prompt":
        head = ctypes.sizeof(abi.fixed_view("RequestParams"))
        ctypes.c_uint32.from_address(span + head + 8).value = value
    else:
        setattr(record if hasattr(record, name) else abi.fixed_view("RequestParams").from_address(span), name, value)
    toy.drain()
    assert (bad.finish, bad.tokens) == (Finish.ERROR, [])
    assert (good.finish, len(good.tokens)) == (Finish.LENGTH, 5)
    assert toy.rings[0].status().malformed == 1
    assert toy.scheduler.at_rest()


def test_a_count_that_a_frontend_made_up_does_no_harm(toys):
    toy = toys(ROOMY)
    toy.submit(PROMPT, SamplingParams(max_tokens=5))
    toy.step()
    control = abi.view("RingMemory", ROOMY).from_address(toy.memory.address).rings[0].control
    control.token_read = 12345
    for _ in range(10):
        toy.step()
    assert toy.rings[0].status().running == 1


def test_an_engine_that_has_parked_is_woken_by_all_that_a_frontend_writes(memory, libraries):
    library = libraries(ROOMY).ring
    shared = abi.view("RingMemory", ROOMY).from_address(memory.address)
    doorbell, rings = Doorbell(library, memory), []

    def wakes(write) -> bool:
        shared.doorbell.parked = 1
        assert not doorbell.rings(0)
        writing = threading.Timer(0.05, write)
        writing.start()
        began = time.monotonic()
        rang = doorbell.rings(20)
        writing.join()
        return rang and time.monotonic() - began < 10

    assert wakes(lambda: rings.append(FrontendRing(library, memory.path)))
    assert wakes(lambda: rings[0].submit(7, PROMPT, SamplingParams(max_tokens=5)))
    assert wakes(lambda: rings[0].abort(7))
    assert wakes(lambda: rings[0].close())


def test_looks_for_dead_frontends_do_not_wake_an_engine_that_has_parked(memory, libraries):
    library = libraries(ROOMY).ring
    ring = FrontendRing(library, memory.path)
    abi.view("RingMemory", ROOMY).from_address(memory.address).doorbell.parked = 1
    look = ctypes.CDLL(str(library)).dp_ring_end_dead_claims
    look.argtypes, look.restype = (ctypes.c_void_p, ctypes.c_int), None
    look(memory.address, memory.file)
    assert not Doorbell(library, memory).rings(0)
    ring.close()


def test_the_heartbeat_goes_on_while_an_engine_is_parked(memory, libraries):
    shared = abi.view("RingMemory", ROOMY).from_address(memory.address)
    shared.doorbell.parked = 1
    doorbell = Doorbell(libraries(ROOMY).ring, memory)
    before = shared.status.heartbeat
    assert not doorbell.rings(0.01)
    assert not doorbell.rings(0.01)
    assert shared.status.heartbeat == before + 2


def test_between_steps_at_a_steady_pace_looks_are_few(toys):
    toy = toys(ROOMY)
    ring = toy.rings[0]
    toy.submit(PROMPT, SamplingParams(max_tokens=50))

    def play():
        for _ in range(40):
            time.sleep(0.02)
            toy.step()

    playing = threading.Thread(target=play)
    playing.start()
    fewest = math.inf
    while playing.is_alive():
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        if ring.wait(0.1) and time.monotonic() - began > 0.015:
            fewest = min(fewest, resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before)
    assert fewest < 40


def test_waiting_ends_when_a_request_arrives(toys):
    toy = toys(ROOMY)
    toy.step()
    toy.step()
    assert not toy.scheduler.wait(0.005)
    toy.submit(PROMPT, SamplingParams(max_tokens=1))
    assert toy.scheduler.wait(0.005)


def test_toys_of_one_seed_repeat(libraries, tmp_path):
    traces = []
    for name in ("a", "b"):
        with Toy(TIGHT, libraries(TIGHT), tmp_path / name) as toy:
            random_run(toy, 3, 60)
            traces.append(toy.trace)
    assert traces[0] == traces[1]


def test_a_submit_that_the_engines_death_overtakes_is_refused_all_the_same(tmp_path, libraries, monkeypatch):
    memory = RingMemory(tmp_path / "rings", ROOMY)
    ring = FrontendRing(libraries(ROOMY).ring, memory.path)

    class Overtaken:
        """The library without room, while the waiting thread learns that the engine is gone."""

        def dp_ring_submit(self, *_):
            monkeypatch.undo()
            memory.close()
            assert [event.finish for event in ring.wait(0)] == [Finish.ENGINE_GONE]
            return 0

    monkeypatch.setattr(ring, "_library", Overtaken())
    assert not ring.submit(1, PROMPT, SamplingParams(max_tokens=1))
    ring.close()


def looks(wait, seconds):
    """How often `wait` wakes up in `seconds` without news."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    assert not wait(seconds)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before


def test_both_ends_look_rarely_once_it_is_quiet_and_often_after_news(toys):
    toy = toys(ROOMY)
    ring = toy.rings[0]
    toy.step()
    toy.step()
    time.sleep(1)
    assert looks(ring.wait, 0.4) < 100
    assert looks(toy.scheduler.wait, 0.4) < 100
    for _ in range(50):  # one that a busy machine does not wake up late
        toy.submit(PROMPT, SamplingParams(max_tokens=1))
        if often := looks(ring.wait, 0.1) > 30:
            break
    assert often
