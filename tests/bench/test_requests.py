"""Requests as a seed draws them, when they arrive, and the bodies they become."""

import json
from itertools import islice

import numpy as np
import pytest

from dualpace.bench.arrivals import gamma
from dualpace.bench.lengths import DISTRIBUTIONS, Request, WorkloadError, drawn
from dualpace.bench.load import Load
from dualpace.bench.prompts import Bodies


def load(**fields: object) -> Load:
    return Load(url="http://localhost", model="m", **fields)


def some(workload: str, seed: int = 0, longest: int | None = None, count: int = 4000) -> list[Request]:
    return list(islice(drawn(workload, seed, longest), count))


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_arrivals_come_at_the_rate_and_as_bursty_as_told(burstiness):
    gaps = np.diff([0.0, *islice(gamma(20.0, burstiness, 5), 20_000)])
    assert 1 / gaps.mean() == pytest.approx(20, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


@pytest.mark.parametrize("workload", DISTRIBUTIONS)
def test_a_seed_draws_the_same_lengths_again_and_none_too_long(workload):
    longest = 40_000
    assert some(workload, 3, longest, 200) == some(workload, 3, longest, 200)
    if workload != "fixed":
        assert some(workload, 3, longest, 200) != some(workload, 4, longest, 200)
    assert all(request.prompt >= 1 <= request.output for request in some(workload))
    assert max(request.prompt + request.output for request in some(workload, 0, longest)) <= longest


@pytest.mark.parametrize(
    ("workload", "prompt", "output"),
    [
        ("chat", 220, 200),
        ("chat:100", 100, 200),
        ("bimodal:512,50", 512 * (0.75 + 0.25 * 8), 50),
        ("long:1000,10", 1000, 10),
        ("shared-prefix:100,20,1000", 1100, 20),
        ("fixed:7,3", 7, 3),
    ],
)
def test_lengths_have_the_means_they_are_told(workload, prompt, output):
    requests = some(workload, count=20_000)
    assert np.mean([request.prompt for request in requests]) == pytest.approx(prompt, rel=0.05)
    assert np.mean([request.output for request in requests]) == pytest.approx(output, rel=0.05)


def test_zipf_has_many_short_prompts_and_a_long_tail():
    prompts = np.array([request.prompt for request in some("zipf:8192", count=20_000)])
    assert (prompts.min(), prompts.max() > 6000, np.median(prompts) < 500) == (16, True, True)


def test_a_workload_that_fits_no_server_is_refused():
    with pytest.raises(WorkloadError, match="at most 500 tokens"):
        some("fixed:1024,128", 0, 500)


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 128, 5000])
def test_a_prompt_of_ids_has_exactly_its_tokens(tokens):
    body = json.loads(Bodies(load(ids=(10, 20))).body(Request(tokens, 5)))
    assert len(body["prompt"]) == tokens
    assert set(body["prompt"]) <= set(range(10, 20))
    assert (body["max_tokens"], body["ignore_eos"], body["stream"], body["model"]) == (5, True, True, "m")


def test_prompts_begin_alike_only_where_they_share_a_block():
    bodies = Bodies(load())
    first, second, third = (json.loads(bodies.body(Request(300, 5, ((key, 100),))))["prompt"] for key in (1, 1, 2))
    assert first[:100] == second[:100] != third[:100]
    assert first[100:116] != second[100:116]
    plain = [json.loads(bodies.body(Request(300, 5)))["prompt"] for _ in range(50)]
    assert len({tuple(prompt[:16]) for prompt in plain}) == 50


def test_a_chat_has_words_and_the_fields_that_the_user_adds_or_leaves_out():
    bodies = Bodies(load(api="chat", body={"temperature": 0, "ignore_eos": None}))
    body = json.loads(bodies.body(Request(100, 5)))
    assert len(body["messages"][0]["content"].split()) == 100
    assert body["temperature"] == 0
    assert "ignore_eos" not in body
    assert json.loads(bodies.body(Request(3, 5, text='say "x"')))["messages"][0]["content"] == 'say "x"'
