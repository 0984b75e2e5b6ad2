"""What tests have engines and frontends do."""

import os
import time

from dualpace.engine.ring import Finish, RingError, SamplingParams
from dualpace.plan import abi
from tests.scheduler.toy import continuation

PROMPT = [5, 17, 60, 2, 44]
LONG = SamplingParams(max_tokens=60)
# Of emulation beside other work.
SECONDS = 60


def wait_for(done, seconds=SECONDS, pause=0.02):
    end = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < end, "did not come about"
        time.sleep(pause)
    return found


def step_until(toy, done):
    """Steps, with what is published read, until `done()`."""

    def stepped():
        toy.step()
        for ring in range(len(toy.rings)):
            toy.read(ring)
        return done()

    if not done():
        wait_for(stepped, pause=0)


def running(toy, ring=0):
    """A request that has its first token."""
    request = toy.submit(PROMPT, LONG, ring)
    step_until(toy, lambda: request.tokens)
    return request


def ends(ring):
    """The finishes of the requests of `ring`, of which it hears the last now."""
    return wait_for(lambda: [event.finish for event in ring.wait(0.05) if event.finish])


def other_goes_on(toy, ring=1):
    """A request of another frontend gets its whole text."""
    request = toy.submit(PROMPT, SamplingParams(max_tokens=20), ring)

    def finished():
        toy.step()
        toy.read(ring)
        return request.finish

    wait_for(finished, pause=0)
    assert (request.tokens, request.finish) == continuation(toy.plan, PROMPT, request.params)


def at_rest(toy):
    def rests():
        toy.step()
        return toy.scheduler.at_rest()

    wait_for(rests, pause=0)


def memory_of(toy):
    """The engine's ring memory, as a struct."""
    return abi.view("RingMemory", toy.plan).from_address(toy.memory.address)


def is_free(toy, ring):
    """Whether nobody has claimed it."""
    lock = toy.claims.hold(ring)
    if lock is not None:
        os.close(lock)
    return lock is not None


def comes_in(uplink):
    """A ring of the frontend, once what its last connection left has ended; where nothing is quick it tries again."""

    def ask(what):
        try:
            return what()
        except RingError:
            return None

    if not uplink.bundle.exists():
        wait_for(lambda: ask(uplink.fetch))
    ring = wait_for(lambda: ask(uplink.claim))
    ring.uplink = uplink
    return ring


def again(toy, ring=0):
    """Its frontend comes back, and is served in a new epoch."""
    uplink, before = toy.rings[ring].uplink, memory_of(toy).rings[ring].control.epoch
    toy.rings[ring].close()
    toy.requests.clear()
    toy.rings[ring] = comes_in(uplink)

    def open_anew():
        epoch = memory_of(toy).rings[ring].control.epoch
        return epoch % 2 == 1 and epoch != before  # an open ring's is odd, and comes in no order

    wait_for(open_anew)
    request = toy.submit(PROMPT, SamplingParams(max_tokens=5), ring)
    step_until(toy, lambda: request.finish)
    assert request.finish is Finish.LENGTH
    at_rest(toy)
