"""Forecasts beside what was measured, and their silence where nothing was."""

import json
from pathlib import Path

import pytest

from benchmarks.linear_page import products
from dualpace.plan.forecast import PRODUCTS, PROMPT_ATTENTION_FLOPS, forecast, measured_products

from .deployments import GEMMA_270M, LLAMA_8B, MISTRAL_7B, plan

RESULTS = Path("benchmarks/results")
TRACES = Path("benchmarks/traces/decode.json")


def cell(rows, context, route="auto"):
    """The forecast of one operating point of Llama-3.1-8B on an H200."""
    deployment = plan(LLAMA_8B, attention__route=route)
    point = deployment.floors[0].model_copy(update={"rows": rows, "context": context})
    parts = (deployment.model, deployment.target, deployment.attention, deployment.policy)
    return forecast(*parts, deployment.schedule.prefill_chunk, (point,)).cells[0]


MEASURED = json.loads((RESULTS / "gpu_engine.json").read_text())["cells"]


@pytest.mark.parametrize("measured", MEASURED, ids=lambda cell: f"{cell['rows']}x{cell['prompt']}")
def test_tpot_is_what_the_engine_was_measured_at(measured):
    halfway = measured["prompt"] + measured["tokens"] // measured["rows"] // 2
    assert cell(measured["rows"], halfway).seconds == pytest.approx(measured["tpot_s"], rel=0.1)


@pytest.mark.parametrize("measured", MEASURED, ids=lambda cell: f"{cell['rows']}x{cell['prompt']}")
def test_ttft_is_what_the_engine_was_measured_at(measured):
    found = cell(measured["rows"], measured["prompt"]).ttft_seconds
    assert found == pytest.approx(measured["ttft_s"], rel=0.12)


def test_attention_of_prompts_has_the_rate_that_the_benchmark_read():
    steps = [
        step for step in json.loads((RESULTS / "gpu_prefill.json").read_text())["results"] if "32k row" in step["step"]
    ]
    rate = sum(step["flops"] for step in steps) / sum(step["seconds"]["wgmma"] for step in steps)
    assert pytest.approx(rate, rel=1e-3) == PROMPT_ATTENTION_FLOPS


# Prompts have logits of a few tokens a step only.
@pytest.mark.parametrize("rows", [rows for rows, points in measured_products().items() if len(points) == 5])
def test_products_of_measured_sizes_take_what_was_measured(rows):
    *layer, head = (seconds for _, seconds in measured_products()[rows])
    assert len(layer) == 4
    assert cell(rows, 16).product_seconds == pytest.approx(32 * sum(layer) + head)


def test_products_are_known_as_the_benchmark_read_them():
    report = json.loads((RESULTS / "gpu_linear.json").read_text())
    assert PRODUCTS.read_text(encoding="utf-8") == products(report)


@pytest.mark.parametrize("route", ["workqueue", "split"])
def test_attention_takes_about_what_the_benchmark_read(route):
    traces = json.loads(TRACES.read_text())
    for result in json.loads((RESULTS / "gpu_attention.json").read_text())["results"]:
        contexts = traces[result["trace"]]
        if (result["route"], result["gqa_ratio"], result["head_dim"]) == (route, 4, 128) and len(set(contexts)) == 1:
            found = cell(len(contexts), contexts[0], route).attention_seconds / 32
            assert found == pytest.approx(result["attention_s"], rel=0.15)


def test_auto_takes_as_long_as_the_cheapest_route():
    seconds = {route: cell(8, 32768, route).attention_seconds for route in ("auto", "workqueue", "split")}
    assert seconds["auto"] == min(seconds.values())


@pytest.mark.parametrize("route", ["auto", "split"])
@pytest.mark.parametrize("shape", [LLAMA_8B, MISTRAL_7B])
@pytest.mark.parametrize("chunk", [16, 2048, 8192])
def test_a_forecast_is_above_its_floor_and_the_sum_of_its_parts(shape, route, chunk):
    deployment = plan(shape, attention__route=route, scheduler__prefill_chunk=chunk)
    assert len(deployment.forecast.cells) == len(deployment.floors) > 8
    for point, found in zip(deployment.floors, deployment.forecast.cells, strict=True):
        assert (found.rows, found.context) == (point.rows, point.context)
        assert found.seconds > point.seconds
        assert found.ttft_seconds > point.ttft_seconds
        parts = found.product_seconds + found.attention_seconds + found.other_seconds + found.launch_seconds
        assert found.seconds == pytest.approx(parts)
        assert found.tokens_per_second == pytest.approx(found.rows / found.seconds)


def test_more_of_anything_takes_longer():
    for rows, more in [(1, 2), (16, 17), (64, 100), (256, 300)]:
        assert cell(rows, 1024).seconds < cell(more, 1024).seconds
        assert cell(rows, 1024).ttft_seconds < cell(more, 1024).ttft_seconds
        assert cell(8, rows * 100).seconds < cell(8, more * 100).seconds


def test_every_prompt_that_ends_in_a_step_needs_the_head():
    assert cell(256, 8).ttft_seconds > cell(128, 16).ttft_seconds


def test_what_bounds_a_step_is_its_largest_part():
    assert cell(1, 1024).bound == "products"
    assert cell(8, 32768).bound == "attention"
    assert cell(1, 131072).ttft_bound == "attention"


@pytest.mark.parametrize(
    ("shape", "gpu", "fields", "why"),
    [
        (LLAMA_8B, "b200", {}, "no kernel was measured on b200"),
        (GEMMA_270M, None, {}, "no kernel was measured on cpu"),
        (LLAMA_8B, "h200", {"target__count": 2}, "what cards exchange was not measured"),
        (LLAMA_8B, "h200", {"model__dtype": "fp32"}, "kernels were measured in bf16, not in fp32"),
        (
            LLAMA_8B | {"kv_heads": 1},
            "h200",
            {},
            "attention with heads of 128, 32 to a KV head was not measured: `dualpace calibrate` measures it",
        ),
    ],
)
def test_nothing_is_said_where_nothing_was_measured(shape, gpu, fields, why):
    found = plan(shape, gpu, **fields).forecast
    assert found.cells == ()
    assert found.basis == why


def test_a_route_whose_kernel_was_not_measured_has_no_forecast():
    deployment = plan(LLAMA_8B, attention__route="flashinfer")
    without = deployment.policy.model_copy(update={"flashinfer": None})
    parts = (deployment.model, deployment.target, deployment.attention, without)
    found = forecast(*parts, deployment.schedule.prefill_chunk, deployment.floors)
    assert (found.cells, found.basis) == ((), "the flashinfer route was not measured")
    assert deployment.forecast.cells
