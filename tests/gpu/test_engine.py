"""The GPU engine through its rings: what it says is what the model says, whoever launches its steps."""

import random
import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dualpace.engine.memory import RingMemory
from dualpace.engine.ring import FrontendRing, SamplingParams, TokenEvent
from dualpace.plan.structs import Finish
from tests.engine.models import CONTEXT
from tests.engine.rows import reference_logits

from .serving import VOCABULARY, Served, check_at_rest, check_greedy, serve

pytestmark = pytest.mark.gpu

REQUESTS = 60
MANY = 10_000
TOPS = 3


@pytest.fixture(params=["host", "device"])
def engine(request, served):
    """A started engine and its frontend."""
    from dualpace.engine.device import Cubin, mapped
    from dualpace.engine.drive import GpuEngine

    with TemporaryDirectory(dir="/dev/shm") as folder:
        memory = RingMemory(Path(folder) / "rings", served.plan)
        with mapped(memory.address, memory.size) as address:
            on_device = {name: tensor.cuda() for name, tensor in served.weights.items()}
            cubin = Cubin(*served.cubins)
            found = GpuEngine(served.plan, on_device, cubin, address, VOCABULARY, request.param)
            found.start()
            frontend = FrontendRing(served.ring, memory.path)
            yield found, frontend, request.param
            found.stop()
            frontend.close()
        memory.close()


only_llama = pytest.mark.parametrize("served", [("llama", "fp32")], indirect=True, ids="-".join)
only_device = pytest.mark.parametrize("engine", ["device"], indirect=True)


def check_logprobs(
    served: Served, prompt: list[int], params: SamplingParams, events: list[TokenEvent], *, whole: bool
) -> None:
    """Those of the prompt's tokens from the second on are the model's; without an abort all are there."""
    scored = [event for event in events if event.of_prompt]
    assert scored == events[: len(scored)]
    if params.prompt_logprobs is None:
        assert not scored
        return
    assert [event.token for event in scored] == prompt[1 : 1 + len(scored)]
    assert len(scored) == len(prompt) - 1 or not whole
    for event, at in zip(scored, reference_logits(served.model, prompt).log_softmax(1), strict=False):
        assert abs(event.logprob - at[event.token]) < 2 * served.bound
        top = [logprob for _, logprob in event.top]
        assert top == pytest.approx(at.topk(TOPS).values.tolist(), abs=2 * served.bound)


def test_tokens_are_the_models_under_preemption_reuse_and_aborts(served, engine):
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
    aborted = {tag: 3 for tag in requests if tag % 7 == 3 and requests[tag][1].max_tokens > 50}
    events = serve(gpu, frontend, driver, requests, aborted)
    for tag, (prompt, params) in requests.items():
        tokens = [event.token for event in events[tag] if event.token >= 0 and not event.of_prompt]
        check_logprobs(served, prompt, params, events[tag], whole=tag not in aborted)
        last = events[tag][-1]
        assert last.finish is Finish.LENGTH or (tag in aborted and last.finish is Finish.ABORT)
        assert len(tokens) == params.max_tokens or tag in aborted
        if tokens:
            check_greedy(served, prompt, tokens)
    check_at_rest(frontend)
    status = frontend.status()
    assert status.preempted > 0
    assert status.reused > 0


@only_llama
@only_device
def test_ten_thousand_requests_with_aborts_at_any_time_are_answered_once_each_and_leave_nothing(served, engine):
    gpu, frontend, driver = engine
    dice = random.Random(6)
    texts = [dice.choices(range(VOCABULARY), k=120) for _ in range(3)]
    prompts = [text[: dice.randrange(1, 121)] for text in texts for _ in range(12)]
    requests, aborts = {}, {}
    for tag in range(MANY):
        most = dice.choice((1, 2, 5, 17, 40, 150))
        requests[tag] = dice.choice(prompts), SamplingParams(max_tokens=most, temperature=0.0)
        if dice.random() < 0.3:
            # From before the engine has seen it to after its end.
            aborts[tag] = dice.randrange(most + 1)
    events = serve(gpu, frontend, driver, requests, aborts)
    check_at_rest(frontend)
    status = frontend.status()
    assert (status.finished + status.aborted, status.failed) == (MANY, 0)
    assert status.aborted > MANY / 20
    assert status.preempted > 0
    said = defaultdict(set)
    for tag, (prompt, params) in requests.items():
        tokens = tuple(event.token for event in events[tag] if event.token >= 0)
        assert [event.index for event in events[tag]][: len(tokens)] == list(range(len(tokens)))
        assert (events[tag][-1].finish, len(tokens)) == (Finish.LENGTH, params.max_tokens) or tag in aborts
        said[tuple(prompt)].add(tokens)
    for prompt, texts_said in said.items():
        # One text a prompt, but for ties.
        for tokens in texts_said:
            if tokens and not any(other[: len(tokens)] == tokens for other in texts_said - {tokens}):
                check_greedy(served, list(prompt), list(tokens))


@only_llama
@only_device
def test_the_heartbeat_moves_while_there_is_nothing_to_do(engine):
    gpu, frontend, _ = engine
    before = frontend.status()
    time.sleep(0.5)
    after = frontend.status()
    assert after.heartbeat > before.heartbeat + 5
    assert after.steps == before.steps
    assert gpu.running()
