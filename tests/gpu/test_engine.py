"""The GPU engine through its rings: what it says is what the model says, whoever launches its steps."""

import random
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from dualpace.engine.memory import RingMemory
from dualpace.engine.ring import FrontendRing, SamplingParams, TokenEvent
from dualpace.model.weights import DTYPES, load
from dualpace.plan.plan import Plan
from dualpace.plan.structs import Finish, StepKind
from tests.engine.models import CONTEXT
from tests.engine.rows import reference_logits
from tests.engine.test_parity import text

from .conftest import compile_cubins, compile_ring
from .test_forward import BOUND, Tiny, tiny

pytestmark = pytest.mark.gpu

# Pages for less than half of what a full batch wants, so that rows are preempted.
PAGES = 70
REQUESTS = 60
MANY = 10_000
VOCABULARY = 131
SECONDS = 60
TOPS = 3


class Served(NamedTuple):
    """A tiny model, the plan that serves it with scarce pages, what that loads, and how far logits may err."""

    model: PreTrainedModel
    plan: Plan
    weights: dict[str, torch.Tensor]
    cubins: tuple[Path, ...]
    ring: Path
    bound: float


@pytest.fixture(scope="module", params=[("llama", "fp32"), ("gemma3", "fp32"), ("llama", "bf16")], ids="-".join)
def served(request, tmp_path_factory, store):
    each = tiny(*request.param, tmp_path_factory.mktemp("served"))
    pages = tuple(group.model_copy(update={"pages": PAGES}) for group in each.plan.pages)
    plan = each.plan.model_copy(update={"pages": pages})
    bound = BOUND if plan.model.dtype == "fp32" else error_in_16_bits(each)
    compiled = compile_cubins(plan, store), compile_ring(plan, store)
    return Served(each.model, plan, load(plan, each.folder), *compiled, bound)


def error_in_16_bits(each: Tiny) -> float:
    """The largest of a logit that transformers makes in the plan's dtype."""
    dtype = DTYPES[each.plan.model.dtype]
    theirs = AutoModelForCausalLM.from_pretrained(each.folder, dtype=dtype, attn_implementation="eager")
    tokens = text(3)
    return (reference_logits(theirs, tokens) - reference_logits(each.model, tokens)).abs().max().item()


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


def serve(
    engine, frontend: FrontendRing, driver: str, requests, aborts: Mapping[int, int]
) -> dict[int, list[TokenEvent]]:
    """Submit `requests`, (prompt, parameters) by tag, and wait for the end of each; `aborts` says after which event."""
    events: dict[int, list[TokenEvent]] = defaultdict(list)
    waiting = deque(requests.items())
    due: deque[int] = deque()
    ended: set[int] = set()
    deadline = time.monotonic() + SECONDS
    while len(ended) < len(requests):
        assert time.monotonic() < deadline, f"{len(requests) - len(ended)} requests do not end"
        while waiting and frontend.submit(waiting[0][0], *waiting[0][1]):
            tag, _ = waiting.popleft()
            due += [tag] if aborts.get(tag) == 0 else []
        while due and frontend.abort(due[0]):
            due.popleft()
        if driver == "host":
            while engine.advance() is not StepKind.IDLE:
                pass
        else:
            assert engine.running()
        for event in frontend.wait(0.01):
            assert event.tag not in ended
            events[event.tag].append(event)
            if event.finish is not Finish.NONE:
                ended.add(event.tag)
            if aborts.get(event.tag) == len(events[event.tag]):
                due.append(event.tag)
    return events


def check_at_rest(frontend: FrontendRing) -> None:
    """Nothing is said any more, and nothing is held."""
    assert frontend.wait(0.2) == []
    status = frontend.status()
    assert status.free_pages == status.total_pages
    assert status.running == status.waiting == 0


def check_greedy(served: Served, prompt: list[int], tokens: list[int]) -> None:
    """Each of `tokens` is the model's best after those before it, as far as the type of the plan decides that."""
    logits = reference_logits(served.model, prompt + tokens[:-1])[len(prompt) - 1 :]
    assert (logits.max(1).values - logits[torch.arange(len(tokens)), tokens]).max() < 2 * served.bound


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
