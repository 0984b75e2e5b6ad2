"""Parameters are the models' own; floors are those that the measurements were compared with."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from dualpace.plan.checkpoint import read_checkpoint
from dualpace.plan.roofline import floor, kv_bytes_read, parameters
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


@pytest.mark.parametrize(("rows", "prompt", "generated", "milliseconds"), MEASURED_FLOORS)
def test_floors_of_llama_8b_on_h200(rows, prompt, generated, milliseconds):
    deployment = plan(LLAMA_8B)
    found = floor(deployment.model, deployment.target, rows, prompt + generated // 2)
    assert 1e3 * found.seconds == pytest.approx(milliseconds, rel=0.02)


def test_the_floor_names_what_bounds_the_matrix_products():
    deployment = plan(LLAMA_8B)
    assert floor(deployment.model, deployment.target, 1, 1024).bound == "bandwidth"
    assert floor(deployment.model, deployment.target, 256, 1024).bound == "compute"


def test_an_untied_embedding_table_is_not_read_at_decode_and_a_tied_one_is():
    untied = plan(GEMMA_270M | {"tie_embeddings": False}, gpu=None)
    tied = plan(GEMMA_270M, gpu=None)
    assert untied.parameters - tied.parameters == 262144 * 640
    assert untied.floors[0].weight_seconds == tied.floors[0].weight_seconds


def test_a_window_bounds_the_kv_that_a_step_reads():
    model = plan(MISTRAL_7B).model
    assert kv_bytes_read(model, 4096) == 4096 * 128 * 1024
    assert kv_bytes_read(model, 32768) == kv_bytes_read(model, 4096)


def test_only_full_attention_layers_read_more_kv_past_the_window():
    model = plan(GEMMA_270M, gpu=None).model
    assert kv_bytes_read(model, 2000) - kv_bytes_read(model, 1000) == 3 * 1000 * 2 * 256 * 2


def test_cards_share_weights_and_kv():
    one, two = plan(LLAMA_8B), plan(LLAMA_8B, target__count=2)
    assert two.floors[0].seconds == pytest.approx(one.floors[0].seconds / 2)
