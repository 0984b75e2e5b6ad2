"""The GPU engine through its rings: what it says is what the model says, whoever launches its steps."""

import random
import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from dualpace.engine.memory import RingMemory
from dualpace.engine.ring import FrontendRing, SamplingParams, TokenEvent
from dualpace.model.weights import load
from dualpace.plan.structs import Finish, StepKind
from tests.engine.models import CONTEXT
from tests.engine.rows import reference_logits

from .conftest import compile_engine, compile_ring
from .test_forward import BOUND, tiny

pytestmark = pytest.mark.gpu

# Pages for less than half of what a full batch wants, so that rows are preempted.
PAGES = 70
REQUESTS = 60
VOCABULARY = 131
SECONDS = 60
TOPS = 3


@pytest.fixture(scope="module")
def served(tmp_path_factory, store):
    """A tiny model, the plan that serves it with scarce pages, and what is compiled for that."""
    each = tiny("llama", "fp32", tmp_path_factory.mktemp("served"))
    pages = tuple(group.model_copy(update={"pages": PAGES}) for group in each.plan.pages)
    plan = each.plan.model_copy(update={"pages": pages})
    return each.model, plan, load(plan, each.folder), compile_engine(plan, store), compile_ring(plan, store)


@pytest.fixture(params=["host", "device"])
def engine(request, served):
    """A started engine and its frontend."""
    from dualpace.engine.device import Cubin, mapped
    from dualpace.engine.drive import GpuEngine

    _, plan, weights, cubin, ring = served
    with TemporaryDirectory(dir="/dev/shm") as folder:
        memory = RingMemory(Path(folder) / "rings", plan)
        with mapped(memory.address, memory.size) as address:
            on_device = {name: tensor.cuda() for name, tensor in weights.items()}
            found = GpuEngine(plan, on_device, Cubin(cubin), address, VOCABULARY, request.param)
            found.start()
            frontend = FrontendRing(ring, memory.path)
            yield found, frontend, request.param
            found.stop()
            frontend.close()
        memory.close()


def serve(engine, frontend: FrontendRing, driver: str, requests, aborts=frozenset()) -> dict[int, list[TokenEvent]]:
    """Submit `requests`, (prompt, parameters) by tag, and wait for the end of each; `aborts` after three tokens."""
    events: dict[int, list[TokenEvent]] = defaultdict(list)
    waiting = list(requests.items())
    ended: set[int] = set()
    deadline = time.monotonic() + SECONDS
    while len(ended) < len(requests):
        assert time.monotonic() < deadline, f"{len(requests) - len(ended)} requests do not end"
        while waiting and frontend.submit(waiting[0][0], *waiting[0][1]):
            del waiting[0]
        if driver == "host":
            while engine.advance() is not StepKind.IDLE:
                pass
        else:
            assert engine.running()
        for event in frontend.wait(0.01):
            events[event.tag].append(event)
            if event.finish is not Finish.NONE:
                ended.add(event.tag)
            elif event.tag in aborts and len(events[event.tag]) == 3:
                assert frontend.abort(event.tag)
    return events


def check_logprobs(model, prompt: list[int], params: SamplingParams, events: list[TokenEvent], *, whole: bool) -> None:
    """Those of the prompt's tokens from the second on are the model's; without an abort all are there."""
    scored = [event for event in events if event.of_prompt]
    assert scored == events[: len(scored)]
    if params.prompt_logprobs is None:
        assert not scored
        return
    assert [event.token for event in scored] == prompt[1 : 1 + len(scored)]
    assert len(scored) == len(prompt) - 1 or not whole
    for event, at in zip(scored, reference_logits(model, prompt).log_softmax(1), strict=False):
        assert abs(event.logprob - at[event.token]) < 2 * BOUND
        assert [logprob for _, logprob in event.top] == pytest.approx(at.topk(TOPS).values.tolist(), abs=2 * BOUND)


def test_tokens_are_the_models_under_preemption_reuse_and_aborts(served, engine):
    model = served[0]
    gpu, frontend, driver = engine
    dice = random.Random(5)
    shared = dice.choices(range(VOCABULARY), k=100)
    requests = {}
    for tag in range(REQUESTS):
        prompt = shared[: dice.choice((0, 50, 100))] + dice.choices(range(VOCABULARY), k=dice.randrange(1, 150))
        most = min(300, CONTEXT - len(prompt))
        logprobs = TOPS if tag % 3 == 1 else None
        params = SamplingParams(max_tokens=dice.randrange(1, most), temperature=0.0, prompt_logprobs=logprobs)
        requests[tag] = prompt, params
    aborted = {tag for tag in requests if tag % 7 == 3 and requests[tag][1].max_tokens > 50}
    events = serve(gpu, frontend, driver, requests, aborted)
    for tag, (prompt, params) in requests.items():
        tokens = [event.token for event in events[tag] if event.token >= 0 and not event.of_prompt]
        check_logprobs(model, prompt, params, events[tag], whole=tag not in aborted)
        last = events[tag][-1]
        assert last.finish is Finish.LENGTH or (tag in aborted and last.finish is Finish.ABORT)
        assert len(tokens) == params.max_tokens or tag in aborted
        logits = reference_logits(model, prompt + tokens[:-1])[len(prompt) - 1 :] if tokens else torch.empty(0, 1)
        chosen = logits[torch.arange(len(tokens)), tokens]
        assert (logits.max(1).values - chosen).max() < 2 * BOUND, tag
    status = frontend.status()
    assert status.preempted > 0
    assert status.reused > 0
    assert status.free_pages == status.total_pages
    assert status.running == status.waiting == 0


def test_the_heartbeat_moves_while_there_is_nothing_to_do(engine):
    gpu, frontend, driver = engine
    if driver == "host":
        pytest.skip("it beats as often as the host advances it")
    before = frontend.status()
    time.sleep(0.5)
    after = frontend.status()
    assert after.heartbeat > before.heartbeat + 5
    assert after.steps == before.steps
    assert gpu.running()
