"""The main job on real input: Gemma 3 270M over HTTP on the CPU, seen by the openai client."""

import json
import math
import os
import signal
import threading
import urllib.request
from pathlib import Path

import openai
import pytest
from openai import OpenAI

from tests.e2e.appliance import Served, engine_of, serving, wait_until_healthy

pytestmark = pytest.mark.model

MODEL = "quickstart"
PROMPT = "Paris is the capital of"


def test_greedy_completion_knows_its_capitals(client: OpenAI) -> None:
    completion = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=4, temperature=0)
    assert completion.choices[0].text.startswith(" France")
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 4
    assert completion.usage.prompt_tokens == 6  # five words and the BOS


def test_streamed_text_equals_unstreamed_text(client: OpenAI) -> None:
    arguments = {"model": MODEL, "prompt": PROMPT, "max_tokens": 24, "temperature": 0.8, "seed": 7}
    whole = client.completions.create(**arguments)
    chunks = list(client.completions.create(**arguments, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_logprobs_say_how_greedy_text_was_chosen(client: OpenAI) -> None:
    choice = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=12, temperature=0, logprobs=20).choices[0]
    logprobs = choice.logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens) == choice.text
    for own, top in zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert own == max(top.values())
        assert 0.5 < sum(map(math.exp, top.values())) <= 1.001


def test_a_prompt_is_scored_as_its_text_was_when_it_was_generated(client: OpenAI) -> None:
    generated = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=12, temperature=0, logprobs=1)
    text = PROMPT + generated.choices[0].text
    scored = client.completions.create(model=MODEL, prompt=text, max_tokens=0, echo=True, logprobs=1).choices[0]
    assert (scored.text, scored.finish_reason) == (text, "length")
    assert scored.logprobs is not None
    assert scored.logprobs.token_logprobs[0] is None
    assert "".join(scored.logprobs.tokens[-12:]) == generated.choices[0].text
    # The KV of a prompt is rounded otherwise than that of tokens one by one.
    assert scored.logprobs.token_logprobs[-12:] == pytest.approx(generated.choices[0].logprobs.token_logprobs, abs=0.1)


def test_the_right_continuation_is_the_likelier_one(client: OpenAI) -> None:
    # As lm-evaluation-harness asks: one token more is generated, whose entry is the last.
    endings = [" France", " Spain", " cheese"]
    choices = client.completions.create(
        model=MODEL, prompt=[PROMPT + ending for ending in endings], max_tokens=1, temperature=0, echo=True, logprobs=1
    ).choices
    likelihoods = [choice.logprobs.token_logprobs[-2] for choice in choices]
    assert likelihoods == sorted(likelihoods, reverse=True)
    assert choices[0].logprobs.token_logprobs[-2] == max(choices[0].logprobs.top_logprobs[-2].values())


def test_penalties_keep_a_text_from_going_round_in_circles(client: OpenAI) -> None:
    arguments = {"model": MODEL, "prompt": PROMPT, "max_tokens": 60, "temperature": 0, "logprobs": 0}
    plain = client.completions.create(**arguments).choices[0].logprobs.tokens
    penalised = client.completions.create(**arguments, frequency_penalty=1.5).choices[0].logprobs.tokens
    assert len(set(penalised)) > len(set(plain))


def test_requests_share_steps_and_keep_their_own_text(client: OpenAI) -> None:
    prompts = ["One, two, three, four,", "Monday, Tuesday, Wednesday,", PROMPT, "def fibonacci(n):"]

    def complete(prompt: str) -> str:
        return client.completions.create(model=MODEL, prompt=prompt, max_tokens=12, temperature=0).choices[0].text

    alone = [complete(prompt) for prompt in prompts]
    together = [""] * len(prompts)

    def run(i: int) -> None:
        together[i] = complete(prompts[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # In 16 bits a batch may round differently than one row, so a tie can fall either way; most texts must not move.
    assert sum(a == b for a, b in zip(alone, together, strict=True)) >= len(prompts) - 1


def test_a_prompt_longer_than_a_chunk_and_the_window_is_read_to_its_end(client: OpenAI) -> None:
    filler = "The weather was fine and nothing much happened that day. " * 80
    prompt = filler + "Alice's phone number is 4711. Repeat: Alice's phone number is"
    completion = client.completions.create(model=MODEL, prompt=prompt, max_tokens=5, temperature=0)
    assert "4711" in completion.choices[0].text


def test_a_base_model_refuses_chat_with_a_sentence(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="template"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hello"}])


def test_models_and_health(appliance: Served, client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    with urllib.request.urlopen(f"{appliance.url}/health") as response:
        assert json.load(response)["status"] == "ok"


def test_ctrl_c_lets_running_requests_finish_and_ends_cleanly(bundle: Path) -> None:
    with serving(bundle) as served:
        client = OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
        stream = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=24, temperature=0, stream=True)
        next(iter(stream))
        served.process.send_signal(signal.SIGINT)
        rest = list(stream)
        assert rest[-1].choices[0].finish_reason == "length"
        assert served.process.wait(timeout=20) == 0
        with pytest.raises(openai.APIConnectionError):
            client.models.list()


def test_a_killed_engine_ends_streams_with_an_error_and_another_takes_its_place(bundle: Path) -> None:
    with serving(bundle) as served:
        client = OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
        arguments = {"model": MODEL, "prompt": PROMPT, "temperature": 0}
        before = client.completions.create(**arguments, max_tokens=8).choices[0].text
        stream = iter(client.completions.create(**arguments, max_tokens=4000, stream=True))
        next(stream)
        os.kill(engine_of(served.process.pid), signal.SIGKILL)
        with pytest.raises(openai.APIError):
            list(stream)
        wait_until_healthy(served.url)
        assert client.completions.create(**arguments, max_tokens=8).choices[0].text == before
        assert "dualpace.engine was ended by SIGKILL; starting it again\n" in served.said
