import dataclasses

import pytest

from .bundles import EOS, VOCAB
from .conftest import Frontend, ServeToy
from .fake_ring import FakeRing, mix


def test_a_completion_with_the_openai_client(toy: Frontend):
    prompt = "hello world"
    reply = toy.openai.completions.create(model="toy", prompt=prompt, max_tokens=len(toy.encode(prompt)))
    assert reply.choices[0].text == prompt
    assert reply.choices[0].finish_reason == "length"
    assert reply.object == "text_completion"
    assert reply.id.startswith("cmpl-")
    assert reply.model == "toy"


def test_a_streamed_completion_with_the_openai_client(toy: Frontend):
    prompt = "hello world, größer 日本語 🙂"
    tokens = len(toy.encode(prompt))
    chunks = list(toy.openai.completions.create(model="toy", prompt=prompt, max_tokens=tokens, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == prompt
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


@pytest.mark.parametrize("seed", range(4))
def test_streamed_text_equals_unstreamed_text(serve: ServeToy, seed: int):
    toy = serve(FakeRing(play=mix(VOCAB)))
    request = {"model": "toy", "prompt": "x", "max_tokens": 200, "seed": seed, "stop": ["zq", "e"]}
    whole = toy.openai.completions.create(**request)
    chunks = list(toy.openai.completions.create(**request, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


@pytest.mark.parametrize("form", ["text", "texts", "ids", "lists of ids"])
def test_a_prompt_has_four_forms(toy: Frontend, form: str):
    text = "the fox"
    ids = toy.encode(text)
    prompt = {"text": text, "texts": [text, text], "ids": ids, "lists of ids": [ids, ids]}[form]
    reply = toy.openai.completions.create(model="toy", prompt=prompt, max_tokens=len(ids))
    count = 2 if form in ("texts", "lists of ids") else 1
    assert [choice.text for choice in reply.choices] == [text] * count
    assert [choice.index for choice in reply.choices] == list(range(count))
    assert reply.usage.prompt_tokens == count * len(ids)


def test_several_choices_a_prompt_have_their_own_seeds(serve: ServeToy):
    toy = serve(FakeRing(play=mix(VOCAB)))
    request = {"model": "toy", "prompt": ["a", "b"], "max_tokens": 8, "temperature": 1.0, "seed": 7}
    reply = toy.openai.completions.create(**request, n=3)
    assert len({choice.text for choice in reply.choices}) == 6
    seeds = [params.seed for _, params in toy.ring.submitted]
    assert seeds[:3] == seeds[3:]
    assert len(set(seeds)) == 3
    alone = toy.openai.completions.create(**request)
    assert [choice.text for choice in alone.choices] == [reply.choices[0].text, reply.choices[3].text]


def test_without_a_seed_requests_differ(toy: Frontend):
    toy.ring.submitted.clear()
    for _ in range(2):
        toy.openai.completions.create(model="toy", prompt="x", max_tokens=1)
    first, second = (params.seed for _, params in toy.ring.submitted)
    assert first != second


def test_usage_counts_a_prompt_once_and_the_completion_of_every_choice(serve: ServeToy):
    toy = serve(FakeRing(cached_tokens=2))
    prompt = toy.encode("hello world")
    usage = toy.openai.completions.create(model="toy", prompt=prompt, n=2, max_tokens=5).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (len(prompt), 10, len(prompt) + 10)
    assert usage.prompt_tokens_details.cached_tokens == 2


def test_a_stream_ends_with_the_usage_where_it_is_asked_for(toy: Frontend):
    chunks = list(
        toy.openai.completions.create(
            model="toy", prompt=[5, 6], max_tokens=3, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == 5
    assert all("usage" in chunk.model_fields_set and chunk.usage is None for chunk in chunks[:-1])


def test_sampling_fields_reach_the_engine_and_the_model_sets_the_others(toy: Frontend):
    toy.ring.submitted.clear()
    given = {
        "temperature": 0.25, "top_p": 0.5, "top_k": 3, "min_p": 0.125, "seed": -1, "min_tokens": 2,
        "repetition_penalty": 1.25, "presence_penalty": -1.5, "frequency_penalty": 2, "logprobs": 0,
    }  # fmt: skip
    body = {"model": "toy", "prompt": "x", "max_tokens": 4, "stop_token_ids": [9, 8, 9]}
    assert toy.http.post("/v1/completions", json=body | given | {"logit_bias": {"12": 1, "7": -0.5}}).status_code == 200
    assert toy.http.post("/v1/completions", json=body).status_code == 200
    (_, sent), (_, default) = toy.ring.submitted
    assert {name: getattr(sent, name) for name in given} == given | {"seed": 2**64 - 1}
    assert sent.logit_bias == ((12, 1.0), (7, -0.5))
    assert sent.stop_tokens == (*toy.deployment.generation.eos_tokens, 9, 8)
    assert (default.temperature, default.top_p, default.top_k, default.min_tokens) == (0.7, 1.0, 40, 0)
    assert (default.presence_penalty, default.frequency_penalty) == (0, 0)
    assert (default.logit_bias, default.logprobs) == ((), None)
    assert dataclasses.replace(default, seed=0, stop_tokens=()).max_tokens == 4


def test_a_completion_has_sixteen_tokens_by_default_and_fewer_before_the_context_ends(toy: Frontend):
    toy.ring.submitted.clear()
    for length in (1, 250):
        toy.openai.completions.create(model="toy", prompt=[7] * length)
    assert [params.max_tokens for _, params in toy.ring.submitted] == [16, 6]


def test_the_end_token_ends_the_text_and_is_counted_but_not_shown(toy: Frontend):
    end = toy.deployment.tokenizer.encode(EOS)
    reply = toy.openai.completions.create(model="toy", prompt=[*toy.encode("fox"), *end], max_tokens=50)
    assert reply.choices[0].text == "fox"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.completion_tokens == len(toy.encode("fox")) + 1


def test_a_stop_token_is_not_shown_either(toy: Frontend):
    ids = toy.encode("the fox")
    reply = toy.openai.completions.create(
        model="toy", prompt=ids, max_tokens=50, extra_body={"stop_token_ids": [ids[-1]]}
    )
    assert reply.choices[0].text == toy.deployment.tokenizer.decode(ids[:-1])
    assert reply.choices[0].finish_reason == "stop"


def test_ignored_end_tokens_do_not_stop(toy: Frontend):
    toy.ring.submitted.clear()
    end = toy.encode(EOS)
    reply = toy.openai.completions.create(
        model="toy", prompt=[*end, *end], max_tokens=7, extra_body={"ignore_eos": True}
    )
    assert reply.usage.completion_tokens == 7
    assert toy.ring.submitted[0][1].stop_tokens == ()


@pytest.mark.parametrize("stream", [False, True])
def test_echo_puts_the_prompt_first(toy: Frontend, stream: bool):
    for prompt in ("the fox", toy.encode("the fox")):
        reply = toy.openai.completions.create(
            model="toy", prompt=prompt, max_tokens=len(toy.encode("the fox")), echo=True, stream=stream
        )
        text = "".join(chunk.choices[0].text for chunk in reply) if stream else reply.choices[0].text
        assert text == "the foxthe fox"


def test_a_completion_may_have_no_token(toy: Frontend):
    reply = toy.openai.completions.create(model="toy", prompt="the fox", max_tokens=0)
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == ("", "length")
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (len(toy.encode("the fox")), 0)


def test_the_lowest_priority_is_the_highest_of_the_ring(toy: Frontend):
    toy.ring.submitted.clear()
    for fields in ({"priority": -128}, {"priority": -1}, {}, {"priority": 127}):
        toy.openai.completions.create(model="toy", prompt="x", max_tokens=1, extra_body=fields)
    assert [params.priority for _, params in toy.ring.submitted] == [255, 128, 127, 0]


def test_a_bos_is_put_before_a_text_and_not_before_token_ids(serve: ServeToy):
    toy = serve(add_bos=True)
    for prompt in ("fox", [9, 10]):
        toy.openai.completions.create(model="toy", prompt=prompt, max_tokens=1)
    bos = toy.deployment.generation.bos_token
    assert [ids[0] == bos for ids, _ in toy.ring.submitted] == [True, False]


def test_a_model_without_a_tokenizer_reads_and_writes_token_ids(serve: ServeToy):
    toy = serve(with_tokenizer=False)
    reply = toy.openai.completions.create(model="toy", prompt=[3, 381], max_tokens=4)
    assert reply.choices[0].text == "3 381 3 381 "
    refused = toy.http.post("/v1/completions", json={"model": "toy", "prompt": "text"})
    assert refused.status_code == 400
    assert "token ids" in refused.json()["error"]["message"]
