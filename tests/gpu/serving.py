"""Tiny models served through rings on the GPU, and what is asked of their answers."""

import time
from collections import defaultdict, deque
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from dualpace.build.store import Store
from dualpace.engine.ring import FrontendRing, TokenEvent
from dualpace.model.weights import DTYPES, load
from dualpace.plan.plan import Plan
from dualpace.plan.structs import Finish, StepKind
from tests.engine.rows import reference_logits
from tests.engine.test_parity import text

from .conftest import compile_cubins, compile_ring
from .test_forward import BOUND, Tiny, tiny

# Pages for less than half of what a full batch wants, so that rows are preempted.
PAGES = 70
VOCABULARY = 131
SECONDS = 60


class Served(NamedTuple):
    """A tiny model, the plan that serves it with scarce pages, what that loads, and how far logits may err."""

    model: PreTrainedModel
    plan: Plan
    weights: dict[str, torch.Tensor]
    cubins: tuple[Path, ...]
    ring: Path
    bound: float


def make(name: str, dtype: str, folder: Path, store: Store) -> Served:
    """The model `name` in `dtype`, written to `folder` and compiled through `store`."""
    each = tiny(name, dtype, folder)
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
        if driver != "device":
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
