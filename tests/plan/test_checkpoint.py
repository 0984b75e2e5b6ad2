"""Shapes are read from every spelling of a checkpoint, and what is not supported is refused by name."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import Gemma3TextConfig, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from dualpace.plan.checkpoint import Checkpoint, CheckpointError, read_checkpoint
from dualpace.plan.shape import complete, resolve_model

BASE = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
GEMMA = BASE | {
    "model_type": "gemma3_text",
    "hidden_act": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 64,
    "sliding_window": 128,
    "num_hidden_layers": 7,
    "query_pre_attn_scalar": 16,
}


def read(folder, config) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return read_checkpoint(folder)


def model_of(folder, config):
    return resolve_model(complete(read(folder, config).shape), "bf16")


@pytest.mark.parametrize("config_class", [LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config, Gemma3TextConfig])
def test_a_config_that_the_reference_library_writes_gives_its_numbers(config_class, tmp_path):
    config = config_class(
        hidden_size=96, intermediate_size=160, num_hidden_layers=7, num_attention_heads=6, num_key_value_heads=2,
        vocab_size=320, max_position_embeddings=2048,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    shape = complete(read_checkpoint(tmp_path).shape)
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads) == (7, 96, 6, 2)
    assert (shape.intermediate, shape.vocab, shape.context) == (160, 320, 2048)
    assert shape.head_dim == (getattr(config, "head_dim", None) or 16)
    assert shape.norm_eps == config.rms_norm_eps
    assert shape.tie_embeddings == config.tie_word_embeddings
    full = config.rope_parameters.get("full_attention", config.rope_parameters)
    assert shape.rope_theta == full["rope_theta"]


def test_head_dim_is_hidden_by_heads_unless_given(tmp_path):
    assert complete(read(tmp_path, BASE).shape).head_dim == 32
    assert complete(read(tmp_path, BASE | {"head_dim": 48}).shape).head_dim == 48


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_yarn_is_read_under_both_spellings(key, tmp_path):
    scaling = {key: "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    for config in (
        BASE | {"rope_scaling": scaling, "rope_theta": 1e6},
        BASE | {"rope_parameters": {"rope_theta": 1e6, **scaling}},
    ):
        rope = model_of(tmp_path, config).groups[0].rope
        assert (rope.theta, rope.scaling, rope.factor, rope.original_context) == (1e6, "yarn", 4.0, 1024)
        assert rope.attention_factor == pytest.approx(1.1386294361)


def test_llama3_scaling_keeps_its_four_numbers(tmp_path):
    scaling = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = (
        model_of(tmp_path, BASE | {"rope_scaling": scaling | {"original_max_position_embeddings": 8192}}).groups[0].rope
    )
    assert (rope.factor, rope.low_freq_factor, rope.high_freq_factor, rope.original_context) == (32.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 1e6, "rope_local_base_freq": 5e3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
            }
        },
    ],
)
@pytest.mark.parametrize(
    "pattern", [{"sliding_window_pattern": 3}, {"layer_types": [*["sliding_attention"] * 2, "full_attention"] * 2}]
)
def test_gemma_has_a_full_and_a_sliding_group_with_their_own_ropes(rope, pattern, tmp_path):
    config = GEMMA | {"num_hidden_layers": 6} | rope | pattern
    full, sliding = model_of(tmp_path, config).groups
    assert (full.layers, full.window, sliding.layers, sliding.window) == ((2, 5), 0, (0, 1, 3, 4), 128)
    assert (full.rope.theta, full.rope.scaling, full.rope.factor) == (1e6, "linear", 8.0)
    assert (sliding.rope.theta, sliding.rope.scaling) == (5e3, "none")


def test_gemma_without_rope_keys_has_the_family_bases_and_every_sixth_layer_full(tmp_path):
    full, sliding = model_of(tmp_path, GEMMA).groups
    assert full.layers == (5,)
    assert (full.rope.theta, sliding.rope.theta) == (1e6, 1e4)


def test_the_query_scale_of_gemma_is_its_own(tmp_path):
    assert model_of(tmp_path, GEMMA).attention_scale == 0.25


@pytest.mark.parametrize(("given", "cap"), [({}, 0.0), ({"attn_logit_softcapping": 50.0}, 50.0)])
def test_gemma_2_may_have_a_soft_cap_of_attention_scores(given, cap, tmp_path):
    model = model_of(tmp_path, GEMMA | {"model_type": "gemma2"} | given)
    assert model.attention_softcap == cap
    assert [group.layers for group in model.groups] == [(1, 3, 5), (0, 2, 4, 6)]


@pytest.mark.parametrize(
    ("given", "window"), [({"sliding_window": 512}, 512), ({"sliding_window": None}, None), ({}, 4096)]
)
def test_the_window_of_mistral(given, window, tmp_path):
    assert read(tmp_path, BASE | {"model_type": "mistral"} | given).shape.sliding_window == window


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_window_that_is_switched_off_is_none(family, tmp_path):
    config = BASE | {"model_type": family, "sliding_window": 4096, "use_sliding_window": False}
    assert read(tmp_path, config).shape.sliding_window is None


@pytest.mark.parametrize(("key", "name"), [("torch_dtype", "float16"), ("dtype", "float16")])
def test_the_dtype_under_its_old_and_new_key(key, name, tmp_path):
    assert read(tmp_path, BASE | {key: name}).dtype == "fp16"


REFUSED = [
    ({"model_type": "mixtral"}, "model_type 'mixtral'"),
    ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
    ({"num_local_experts": 8}, "num_local_experts"),
    ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0 is not supported for llama"),
    ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
    ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "'longrope'"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "truncate": False}}, "truncate"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"attention_bias": True}, "attention_bias"),
    ({"mlp_bias": True}, "mlp_bias"),
    ({"hidden_act": "relu"}, "hidden_act 'relu'"),
    ({"dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
    ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 2}, "use_sliding_window"),
    ({"model_type": "mistral", "layer_types": ["full_attention", "sliding_attention"] * 2}, "layer_types"),
    ({"hidden_size": None}, "hidden_size None"),
    ({"num_hidden_layers": -1}, "num_hidden_layers -1"),
    ({"num_hidden_layers": 10**9}, "layers 1000000000"),
    ({"vocab_size": True}, "vocab_size True"),
    ({"rms_norm_eps": "small"}, "rms_norm_eps 'small'"),
]


@pytest.mark.parametrize(("change", "named"), REFUSED)
def test_what_is_not_supported_is_refused_by_name(change, named, tmp_path):
    with pytest.raises(CheckpointError) as refused:
        read(tmp_path, BASE | change)
    assert named in str(refused.value)
    assert str(tmp_path) in str(refused.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff", "[" * 100_000])
def test_a_config_that_is_not_an_object_is_refused(text, tmp_path):
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_checkpoint(tmp_path)


def test_a_folder_without_a_config_is_refused_by_its_path(tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json: No such file"):
        read_checkpoint(tmp_path)


ROPE_KEYS = ["rope_type", "factor", "rope_theta", "full_attention", "sliding_attention"]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(ROPE_KEYS), inner),
    max_leaves=4,
)
keys = st.sampled_from([*GEMMA, "rope_scaling", "rope_parameters", "layer_types", "architectures", "dtype"])


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(family=st.sampled_from(["llama", "mistral", "qwen2", "gemma3_text"]), changes=st.dictionaries(keys, values))
def test_any_config_is_read_or_refused(family, changes, tmp_path):
    base = GEMMA if family == "gemma3_text" else BASE
    try:
        found = read(tmp_path, base | {"model_type": family} | changes)
    except CheckpointError:
        return
    assert found.shape.layers > 0
