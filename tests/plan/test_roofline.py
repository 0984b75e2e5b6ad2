"""Parameters are the models' own; floors are those that the measurements were compared with."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from dualpace.plan.attention_cost import candidates, seen_keys
from dualpace.plan.checkpoint import read_checkpoint
from dualpace.plan.roofline import decode_attention, floor, parameters, prompt_attention
from dualpace.plan.shape import complete, resolve_model

from .deployments import GEMMA_270M, LLAMA_8B, MISTRAL_7B, plan

SMALL = {
    "vocab_size": 320,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 24,
}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("config_class", [LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, Gemma3TextConfig])
def test_parameters_are_those_of_the_reference_model(config_class, tied, tmp_path):
    config = config_class(**SMALL, tie_word_embeddings=tied)
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        reference = AutoModelForCausalLM.from_config(config)

    model = resolve_model(complete(read_checkpoint(tmp_path).shape), "bf16")

    assert parameters(model) == reference.num_parameters()


def test_parameters_of_published_models():
    assert plan(LLAMA_8B).parameters == 8_030_261_248
    assert plan(GEMMA_270M, gpu=None).parameters == 268_098_176


# Rows, prompt, tokens generated, and the floor in ms that vLLM's TPOT was compared with on an H200.
MEASURED_FLOORS = [
    (1, 128, 128, 3.31),
    (1, 1024, 256, 3.34),
    (1, 32768, 128, 4.25),
    (8, 1024, 256, 3.57),
    (8, 32768, 64, 10.87),
    (32, 1024, 256, 4.37),
    (128, 1024, 256, 7.55),
    (256, 256, 256, 7.7),
]


def floor_of(deployment, rows, context):
    parts = (deployment.model, deployment.target, deployment.attention, deployment.policy)
    return floor(*parts, deployment.schedule.prefill_chunk, rows, context)


@pytest.mark.parametrize(("rows", "prompt", "generated", "milliseconds"), MEASURED_FLOORS)
def test_floors_of_llama_8b_on_h200(rows, prompt, generated, milliseconds):
    found = floor_of(plan(LLAMA_8B), rows, prompt + generated // 2)
    assert 1e3 * found.seconds == pytest.approx(milliseconds, rel=0.02)
    assert found.tokens_per_second == pytest.approx(rows / found.seconds)


def test_the_floor_names_what_bounds_it():
    deployment = plan(LLAMA_8B)
    assert floor_of(deployment, 1, 1024).bound == "weights"
    assert floor_of(deployment, 256, 256).bound == "compute"
    assert floor_of(deployment, 8, 32768).bound == "KV"
    assert floor_of(deployment, 1, 128).ttft_bound == "weights"
    assert floor_of(deployment, 1, 1024).ttft_bound == "compute"
    assert floor_of(deployment, 1, 131072).ttft_bound == "attention"


def test_attention_is_bound_by_its_products_where_these_are_slow():
    deployment = plan(LLAMA_8B)
    slow = deployment.model_copy(update={"target": deployment.target.model_copy(update={"flops": 1e12})})
    found = floor_of(slow, 8, 65536)
    assert found.bound == "attention"
    assert found.kv_seconds == pytest.approx(4 * 32 * 128 * 32 * 8 * 65536 / 1e12)


def test_the_ttft_floor_of_one_chunk_is_its_products_and_its_attention():
    deployment, tokens = plan(LLAMA_8B), 1024
    layers = 32 * (4096 * 4096 * 2 + 2 * 1024 * 4096 + 3 * 14336 * 4096)
    pairs = 32 * sum(range(1, tokens + 1))
    expected = 2 * layers * tokens / 790e12 + 2 * 128256 * 4096 / 4.54e12 + 4 * 32 * 128 * pairs / 790e12
    assert floor_of(deployment, 1, tokens).ttft_seconds == pytest.approx(expected, rel=1e-3)


def test_small_chunks_read_the_weights_more_often():
    large, small = plan(LLAMA_8B), plan(LLAMA_8B, scheduler__prefill_chunk=64)
    assert floor_of(large, 1, 1024).ttft_seconds < floor_of(small, 1, 1024).ttft_seconds
    assert floor_of(small, 1, 1024).ttft_bound == "weights"


@pytest.mark.parametrize(
    ("tokens", "chunk", "window"), [(1, 16, 0), (100, 16, 0), (96, 16, 0), (300, 32, 48), (40, 64, 8)]
)
def test_a_prompt_is_counted_as_token_by_token(tokens, chunk, window):
    model = plan(MISTRAL_7B | {"sliding_window": window or 4096}).model
    seen = [range(max(0, t - window + 1) if window else 0, t + 1) for t in range(tokens)]
    read = [set().union(*seen[begin : begin + chunk]) for begin in range(0, tokens, chunk)]
    found = prompt_attention(model, tokens, chunk)
    assert found.flops == 4 * 32 * 128 * 32 * sum(map(len, seen))
    assert found.bytes == 32 * 4096 * sum(map(len, read))


def test_an_untied_embedding_table_is_not_read_at_decode_and_a_tied_one_is():
    untied = plan(GEMMA_270M | {"tie_embeddings": False}, gpu=None)
    tied = plan(GEMMA_270M, gpu=None)
    assert untied.parameters - tied.parameters == 262144 * 640
    assert untied.floors[0].weight_seconds == tied.floors[0].weight_seconds


def test_a_window_bounds_the_kv_that_a_step_reads():
    model = plan(MISTRAL_7B).model
    assert decode_attention(model, 4096).bytes == 4096 * 128 * 1024
    assert decode_attention(model, 32768) == decode_attention(model, 4096)


def test_only_full_attention_layers_read_more_kv_past_the_window():
    model = plan(GEMMA_270M, gpu=None).model
    assert decode_attention(model, 2000).bytes - decode_attention(model, 1000).bytes == 3 * 1000 * 2 * 256 * 2


def test_cards_share_weights_and_kv():
    one, two = plan(LLAMA_8B), plan(LLAMA_8B, target__count=2)
    assert two.floors[0].seconds == pytest.approx(one.floors[0].seconds / 2)
    assert two.floors[0].ttft_seconds == pytest.approx(one.floors[0].ttft_seconds / 2)


@pytest.mark.parametrize(
    ("gpu", "asked", "route"),
    [("h200", "workqueue", "workqueue"), ("h200", "flashinfer", "flashinfer"), (None, "auto", "host")],
)
def test_every_floor_has_the_route_that_was_asked_for(gpu, asked, route):
    assert {floor.route for floor in plan(LLAMA_8B, gpu, attention__route=asked).floors} == {route}


def test_auto_is_the_cheapest_route_of_each_floor():
    deployment = plan(LLAMA_8B)
    for point in deployment.floors:
        seen = seen_keys(deployment.model.groups[0], point.rows, point.context)
        choices = candidates(deployment.policy, seen, 8, deployment.attention.split_tokens)
        assert point.route == min(choices, key=lambda choice: choice.seconds).route
