"""A step that takes long, on a clock that moves only while operations run."""

import pytest

from dualpace.appliance.health import STALLED_S, Heartbeat
from dualpace.engine.executor import Executor
from dualpace.engine.kernels import Kernels
from dualpace.engine.memory import RingMemory
from dualpace.engine.ring import FrontendRing, SamplingParams
from dualpace.engine.scheduler import HostScheduler
from dualpace.model.random import random_weights
from dualpace.plan.manifest import HOST_ENGINE, HOST_RING, read_manifest


@pytest.fixture
def engine(bundle, tmp_path):
    """Scheduler, executor, a frontend's ring, and its heartbeat by a clock that each operation's `gate` moves."""
    plan = read_manifest(bundle).plan
    memory = RingMemory(tmp_path / "rings", plan)
    now = [0.0]
    kernels = Kernels(bundle / HOST_ENGINE)
    gate = kernels.dp_gate
    with HostScheduler(bundle / HOST_ENGINE, memory, plan) as scheduler:
        ring = FrontendRing(bundle / HOST_RING, memory.path)
        heartbeat = Heartbeat(ring.status, clock=lambda: now[0])
        seen = []

        def slow_gate(*operands):
            gate(*operands)
            seen.append(heartbeat.unavailable())
            now[0] += 0.9 * STALLED_S
            seen.append(heartbeat.unavailable())

        kernels.dp_gate = slow_gate
        executor = Executor(
            plan,
            random_weights(plan),
            kernels,
            scheduler.step_address,
            lambda logits: scheduler.sample(logits, plan.model.vocab),
            scheduler.beat,
        )
        scheduler.announce(ready=True)
        yield scheduler, executor, ring, seen
        ring.close()
    memory.close()


def test_a_step_slower_than_a_stall_is_healthy_between_its_operations(engine):
    scheduler, executor, ring, seen = engine
    assert ring.submit(1, [1, 2, 3], SamplingParams(max_tokens=4, temperature=0.0))
    for _ in range(3):
        step = scheduler.schedule()
        executor.run(step.tokens, step.samples)
    assert len(seen) >= 12
    assert set(seen) == {None}


def test_an_engine_that_is_not_stepping_is_not_healthy(engine):
    _, _, ring, _ = engine
    now = [0.0]
    heartbeat = Heartbeat(ring.status, clock=lambda: now[0])
    assert heartbeat.unavailable() is None
    now[0] = STALLED_S + 0.1
    assert "heartbeat stopped" in (heartbeat.unavailable() or "")
