"""The scheduler and the sampler on the device take every decision that they take on the host, bit for bit."""

import ctypes
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from dualpace.engine.memory import RingMemory
from dualpace.engine.ring import FrontendRing, SamplingParams
from dualpace.engine.scheduler import HostScheduler
from dualpace.plan.abi import view
from dualpace.plan.structs import MAX_BIAS, MAX_TOP_LOGPROBS, Finish

from .conftest import compile_engine, compile_ring, host_twin
from .plans import plan as make_plan

pytestmark = pytest.mark.gpu

# Pages for about half of what a full batch wants, so that rows are preempted.
PLAN = make_plan(
    "scarce",
    dtype="bf16",
    kv_heads=1,
    ratio=2,
    head_dim=64,
    page_size=8,
    windows=(40, 0),
    pages=70,
    context=256,
    max_batch=8,
    step_tokens=40,
    vocab=2100,
    rings=2,
)
VOCABULARY = 2090
# Steps in which frontends ask for something, and all.
BUSY, STEPS = 400, 1000
# As many as a sanitizer gets through in minutes.
FEW_BUSY, FEW_STEPS = 100, 250


class Side:
    """An engine's scheduler with its rings and their frontends."""

    def __init__(self, folder: Path, ring_library: Path, cleanup: ExitStack) -> None:
        self.memory = RingMemory(folder / type(self).__name__, host_twin(PLAN))
        cleanup.callback(self.memory.close)
        self.frontends = [FrontendRing(ring_library, self.memory.path, ring) for ring in range(PLAN.rings.rings)]
        for frontend in self.frontends:
            cleanup.callback(frontend.close)

    def events(self):
        """What the frontends have been sent since."""
        return [list(iter(lambda frontend=frontend: frontend.wait(0), [])) for frontend in self.frontends]


class HostSide(Side):
    """The host build."""

    def __init__(self, folder: Path, ring_library: Path, cleanup: ExitStack, library: Path) -> None:
        super().__init__(folder, ring_library, cleanup)
        self._scheduler = HostScheduler(library, self.memory, host_twin(PLAN), vocabulary=VOCABULARY)
        cleanup.callback(self._scheduler.close)

    def schedule(self) -> int:
        return self._scheduler.schedule().samples

    def sample(self, logits: torch.Tensor) -> None:
        self._scheduler.sample(logits.data_ptr(), logits.stride(0))

    def step(self) -> dict[str, bytes]:
        return {name: array.tobytes() for name, array in self._scheduler.buffers.items()}


class DeviceSide(Side):
    """The cubin, with the rings in host memory that the device reads and writes."""

    def __init__(self, folder: Path, ring_library: Path, cleanup: ExitStack, cubin: Path) -> None:
        from dualpace.engine.device import Cubin, mapped

        super().__init__(folder, ring_library, cleanup)
        self._cubin = Cubin(cubin)
        self._rings = cleanup.enter_context(mapped(self.memory.address, self.memory.size))
        self._view = view("StepBuffers", PLAN)
        self._state = torch.zeros(self._cubin.constant("dp_state_bytes"), dtype=torch.uint8, device="cuda")
        self._step = torch.zeros(ctypes.sizeof(self._view), dtype=torch.uint8, device="cuda")
        self._scratch = torch.empty(PLAN.schedule.programs[-1].samples, PLAN.model.vocab, device="cuda")
        self._cubin.launch("dp_start", (1,), self._state, self._step, VOCABULARY)

    def schedule(self) -> int:
        self._cubin.launch("dp_schedule", (1,), self._state, self._step, self._rings)
        return self._copy().samples

    def sample(self, logits: torch.Tensor) -> None:
        logits = logits.cuda()
        self._cubin.launch(
            "dp_sample",
            (len(logits),),
            self._state,
            self._step,
            logits,
            ctypes.c_int64(logits.stride(0)),
            self._scratch,
        )

    def step(self) -> dict[str, bytes]:
        step = self._copy()
        arrays = ((name, getattr(step, name)) for name, *_ in step._fields_)
        return {name: bytes(a) for name, a in arrays if isinstance(a, ctypes.Array) and not name.startswith("pad_")}

    def _copy(self):
        return self._view.from_buffer_copy(self._step.cpu().numpy())


def traffic(seed: int, busy: int, steps: int) -> Iterator[list[tuple]]:
    """For each step what the frontends do: (ring, tag, prompt, parameters), or (ring, tag) for an abort."""
    dice = random.Random(seed)
    tags: list[list[int]] = [[] for _ in range(PLAN.rings.rings)]
    for step in range(steps):
        actions: list[tuple] = []
        for ring in range(PLAN.rings.rings):
            # Bursts at first, then silence in which everything drains.
            for _ in range(dice.randrange(4) if step < busy and dice.random() < 0.15 else 0):
                tag = len(tags[ring])
                tags[ring].append(tag)
                prompt = [dice.randrange(PLAN.model.vocab) for _ in range(dice.choice((1, 7, 8, 9, 39, 40, 41, 120)))]
                actions.append((ring, tag, prompt, parameters(dice)))
            if tags[ring] and dice.random() < 0.03:
                actions.append((ring, dice.choice(tags[ring][-8:])))
        yield actions


def parameters(dice: random.Random) -> SamplingParams:
    most = dice.choice((0, 1, 5, 30, 100))
    return SamplingParams(
        max_tokens=most,
        min_tokens=dice.choice((0, most // 2)),
        temperature=dice.choice((0.0, 0.3, 1.0, 3.0)),
        top_p=dice.choice((1.0, 0.9, 0.3)),
        top_k=dice.choice((0, 1, 40)),
        min_p=dice.choice((0.0, 0.1)),
        seed=dice.getrandbits(64),
        stop_tokens=tuple(dice.sample(range(PLAN.model.vocab), dice.choice((0, 1, 32)))),
        repetition_penalty=dice.choice((1.0, 1.0, 1.3)),
        presence_penalty=dice.choice((0.0, 0.0, -1.5)),
        frequency_penalty=dice.choice((0.0, 0.0, 0.7)),
        logit_bias=tuple(
            (token, dice.uniform(-100, 100))
            for token in dice.sample(range(PLAN.model.vocab), dice.choice((0, 0, 3, MAX_BIAS)))
        ),
        logprobs=dice.choice((None, None, 0, 7, MAX_TOP_LOGPROBS)),
        prompt_logprobs=dice.choice((None, None, 0, 7, MAX_TOP_LOGPROBS)),
    )


def logits(step: int, rows: int) -> torch.Tensor:
    """Rows for the sampler: some peaked, some with ties or minus infinities, a few that cannot be sampled."""
    generator = torch.Generator().manual_seed(step)
    values = torch.randn(rows, PLAN.model.vocab, generator=generator) * (1 + step % 5)
    values[:, ::3] = values[:, ::3].round()
    if step % 7 == 0:
        values[:, 5:900] = -torch.inf
    if step % 50 == 49:
        values[0, 77] = torch.nan
    return values


@pytest.fixture
def sides(store):
    with TemporaryDirectory(dir="/dev/shm") as folder, ExitStack() as cleanup:
        arguments = Path(folder), compile_ring(PLAN, store), cleanup
        host = HostSide(*arguments, compile_engine(host_twin(PLAN), store))
        yield host, DeviceSide(*arguments, compile_engine(PLAN, store))


@pytest.mark.parametrize(
    ("seed", "busy", "steps"),
    [
        pytest.param(0, BUSY, STEPS, id="many-0"),
        pytest.param(1, BUSY, STEPS, id="many-1"),
        pytest.param(2, FEW_BUSY, FEW_STEPS, id="few"),
    ],
)
def test_device_and_host_take_the_same_decisions(sides, seed, busy, steps):
    host, device = sides
    ended: list[set[int]] = [set() for _ in host.frontends]
    submitted = [0 for _ in host.frontends]
    for number, actions in enumerate(traffic(seed, busy, steps)):
        for ring, *request in actions:
            frontends = [side.frontends[ring] for side in (host, device)]
            taken = {f.submit(*request) if len(request) > 1 else f.abort(*request) for f in frontends}
            assert len(taken) == 1
            # A ring may be full, of both alike.
            submitted[ring] += len(request) > 1 and taken == {True}
        samples = host.schedule()
        assert device.schedule() == samples, number
        assert device.step() == host.step(), number
        if samples:
            rows = logits(number, samples)
            host.sample(rows)
            device.sample(rows)
            assert device.step() == host.step(), number
        events = host.events()
        assert device.events() == events, number
        for ring, batches in enumerate(events):
            ended[ring] |= {event.tag for batch in batches for event in batch if event.finish is not Finish.NONE}
    status = host.frontends[0].status()
    assert device.frontends[0].status() == status
    assert [len(tags) for tags in ended] == submitted
    assert min(submitted) > busy // 20
    assert status.preempted > 0
    assert status.aborted > 0
    assert status.nonfinite > 0
