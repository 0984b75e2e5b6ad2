"""`/metrics` of a running appliance, as Prometheus reads it."""

import json
import os
import re
import signal
from pathlib import Path

import httpx2 as httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dualpace.engine.ring import Status
from tests.appliance.conftest import wait_for
from tests.e2e.appliance import Served, engine_of

DASHBOARD = Path(__file__).parents[2] / "dashboards" / "dualpace.json"
Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(served: Served) -> Values:
    """Each sample's value by name and labels other than the model's."""
    response = httpx.get(f"{served.url}/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (
            sample.name,
            frozenset((k, v) for k, v in sample.labels.items() if k not in ("model_name", "engine")),
        ): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def pages_of(values: Values) -> dict[str, float]:
    return {state: values["dualpace_kv_pages", frozenset({("state", state)})] for state in ("held", "cached", "free")}


def test_what_requests_did_is_counted(tiny: Served) -> None:
    before = scrape(tiny)

    def complete(**fields: object) -> httpx.Response:
        return httpx.post(f"{tiny.url}/v1/completions", json={"model": "toy", "ignore_eos": True} | fields)

    prompt = [*range(100, 140)]
    for _ in range(2):  # the second finds the first one's pages
        assert complete(prompt=prompt, max_tokens=6).status_code == 200
    stop = complete(prompt=prompt, max_tokens=200, logit_bias={"65": 100}, stop_token_ids=[65]).json()
    assert stop["choices"][0]["finish_reason"] == "stop"
    assert complete(prompt=prompt, max_tokens=10_000).status_code == 400
    assert complete(prompt=prompt, max_tokens=0).status_code == 200
    cached = complete(prompt=prompt, max_tokens=1, n=2).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0
    after = scrape(tiny)

    def grown(name: str, **labels: str) -> float:
        key = name, frozenset(labels.items())
        return after[key] - before[key]

    generated = 6 + 6 + 1 + 1 + 1
    assert grown("dualpace_generated_tokens_total") == generated
    assert grown("dualpace_sampled_tokens_total") == generated
    assert grown("dualpace_prompt_tokens_total") == 6 * len(prompt)
    assert grown("dualpace_cached_tokens_total") == 5 * cached
    assert grown("dualpace_prefilled_tokens_total") == 6 * len(prompt) - 5 * cached
    assert grown("dualpace_choices_total", finish_reason="length") == 5
    assert grown("dualpace_choices_total", finish_reason="stop") == 1
    assert grown("dualpace_rejected_requests_total", status="400") == 1
    assert grown("dualpace_time_to_first_token_seconds_count") == 5
    assert grown("dualpace_inter_token_latency_seconds_count") == 2 * 5
    assert grown("dualpace_time_per_output_token_seconds_count") == 2
    assert grown("dualpace_request_seconds_count") == 6
    assert grown("dualpace_request_prompt_tokens_bucket", le="50.0") == 6
    assert grown("dualpace_request_prompt_tokens_bucket", le="20.0") == 0
    assert grown("dualpace_attention_steps_total", route="host") >= generated - 5
    assert 0 < grown("dualpace_time_to_first_token_seconds_sum") < grown("dualpace_request_seconds_sum")
    assert after["dualpace_requests_running", frozenset()] == 0
    assert after["dualpace_ready", frozenset()] == 1
    pages = pages_of(after)
    assert pages["held"] == 0 < pages["cached"]
    assert sum(pages.values()) == sum(pages_of(before).values()) > 100


def test_a_client_that_leaves_is_one_abort(tiny: Served) -> None:
    before = scrape(tiny)
    engine = engine_of(tiny.process.pid)
    body = {"model": "toy", "prompt": "x", "stream": True}
    # The client is gone before the engine can have finished.
    os.kill(engine, signal.SIGSTOP)
    try:
        with httpx.stream("POST", f"{tiny.url}/v1/completions", json=body) as reply:
            assert reply.status_code == 200
    finally:
        os.kill(engine, signal.SIGCONT)
    ended = "dualpace_ended_requests_total", frozenset({("how", "aborted")})
    told = "dualpace_choices_total", frozenset({("finish_reason", "abort")})
    wait_for(lambda: scrape(tiny)[ended] > before[ended])
    after = scrape(tiny)
    assert (after[ended], after[told]) == (before[ended] + 1, before[told] + 1)


def test_vllm_names_say_the_same(tiny: Served) -> None:
    values = scrape(tiny)
    for name, alias in {
        "dualpace_requests_running": "vllm:num_requests_running",
        "dualpace_requests_waiting": "vllm:num_requests_waiting",
        "dualpace_kv_usage_ratio": "vllm:kv_cache_usage_perc",
        "dualpace_prompt_tokens_total": "vllm:prefix_cache_queries_total",
        "dualpace_cached_tokens_total": "vllm:prefix_cache_hits_total",
        "dualpace_generated_tokens_total": "vllm:generation_tokens_total",
        "dualpace_time_to_first_token_seconds_sum": "vllm:time_to_first_token_seconds_sum",
        "dualpace_inter_token_latency_seconds_count": "vllm:time_per_output_token_seconds_count",
    }.items():
        assert values[alias, frozenset()] == values[name, frozenset()]
    key = frozenset({("finished_reason", "length")})
    assert (
        values["vllm:request_success_total", key]
        == values["dualpace_choices_total", frozenset({("finish_reason", "length")})]
    )


@pytest.fixture(scope="module")
def queries() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


def test_every_metric_that_the_dashboard_asks_for_exists(tiny: Served, queries: list[str]) -> None:
    values = scrape(tiny)
    names = {name for name, _ in values}
    labels = {label for _, pairs in values for label, _ in pairs} | {"model_name"}
    asked = {name for query in queries for name in re.findall(r"\b(?:dualpace_|vllm:)\w+", query)}
    assert len(asked) > 20
    assert asked <= names
    grouped = {label for query in queries for by in re.findall(r"by \(([^)]*)\)", query) for label in by.split(", ")}
    assert grouped <= labels


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    taken = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_no_counter_of_the_engine_is_left_out() -> None:
    from dualpace.appliance.metrics import ENGINE_COUNTERS, OFFLOAD_COUNTERS

    told = {field for counter in ENGINE_COUNTERS + OFFLOAD_COUNTERS for field in counter.fields} - {"steps"}
    told |= {"slow_step_ns", "recall_stall_ns"}  # said in seconds
    assert told == set(Status._fields[Status._fields.index("accepted") :])
