"""Logprobs of prompts over the rings against transformers, teacher-forced."""

import pytest

from dualpace.engine.ring import SamplingParams
from tests.engine.compiled import host_libraries
from tests.engine.models import CHUNK
from tests.engine.requests import answers
from tests.engine.rows import reference_logits
from tests.engine.test_parity import BOUND, text

TOPS = 5


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_they_are_the_references_at_every_position(name, tiny, store, tmp_path):
    case = tiny(name, "fp32")
    prompts = [text(1, 200), text(2, CHUNK), text(3, 1), text(4, 2)]
    asked = SamplingParams(max_tokens=3, prompt_logprobs=TOPS, logprobs=TOPS, temperature=0.0, frequency_penalty=1.0)
    # The last one decodes beside the others' prompts.
    requests = [(prompt, asked) for prompt in prompts] + [(text(5, 20), SamplingParams(max_tokens=200))]
    found = answers(case.plan, case.weights, host_libraries(case.plan, store), tmp_path / "rings", requests)
    for prompt, events in zip(prompts, found, strict=False):
        tokens = prompt + [event.token for event in events if not event.of_prompt]
        assert [event.token for event in events] == tokens[1:]
        said = reference_logits(case.model, tokens).log_softmax(1)
        for event, at in zip(events, said, strict=False):
            best = at.topk(TOPS).values.tolist()
            assert event.logprob == pytest.approx(float(at[event.token]), abs=2 * BOUND)
            assert [logprob for _, logprob in event.top] == pytest.approx(best, abs=2 * BOUND)
