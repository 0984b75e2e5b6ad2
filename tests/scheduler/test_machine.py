"""Whatever a frontend does, in any order: hypothesis looks for a sequence that breaks an invariant, and shrinks it."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from dualpace.engine.ring import FrontendRing, SamplingParams

from .plans import TIGHT, VOCAB
from .toy import Toy

TEXT = [position * 37 % VOCAB for position in range(TIGHT.schedule.max_context)]
RINGS = st.integers(0, TIGHT.rings.rings - 1)


@pytest.fixture
def machine(libraries, tmp_path):
    count = iter(range(10**9))

    class Frontends(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.toy = Toy(TIGHT, libraries(TIGHT), tmp_path / f"rings{next(count)}")

        @rule(
            ring=RINGS,
            shared=st.integers(0, 70),
            own=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20),
            tokens=st.integers(1, 96),
            stops=st.sets(st.integers(0, VOCAB - 1), max_size=3),
            priority=st.integers(0, 255),
        )
        def submit(self, ring, shared, own, tokens, stops, priority):
            prompt = TEXT[:shared] + own
            tokens = min(tokens, TIGHT.schedule.max_context - len(prompt))
            params = SamplingParams(max_tokens=tokens, stop_tokens=tuple(stops), priority=priority)
            self.toy.submit(prompt, params, ring)

        @precondition(lambda self: self.toy.requests)
        @rule(data=st.data(), enough=st.booleans())
        def end(self, data, enough):
            request = data.draw(st.sampled_from(list(self.toy.requests.values())))
            (self.toy.finish if enough else self.toy.abort)(request)

        @rule(ring=RINGS)
        def reopen(self, ring):
            self.toy.rings[ring].close()
            self.toy.rings[ring] = FrontendRing(libraries(TIGHT).ring, self.toy.memory.path, ring)
            self.toy.requests = {tag: r for tag, r in self.toy.requests.items() if r.ring != ring}

        @rule(steps=st.integers(1, 30))
        def step(self, steps):
            for _ in range(steps):
                self.toy.step()

        @rule(ring=RINGS)
        def read(self, ring):
            self.toy.read(ring)

        def teardown(self):
            self.toy.drain()
            self.toy.check()
            self.toy.close()

    return Frontends


def test_no_sequence_of_what_frontends_do_breaks_an_invariant(machine):
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        ),
    )
