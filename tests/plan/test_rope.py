"""Inverse frequencies are the reference implementation's."""

import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from dualpace.plan.plan import Rope
from dualpace.plan.rope import inverse_frequencies, yarn_attention_factor


def reference(rope_type, head_dim, **parameters):
    config = LlamaConfig(
        hidden_size=8 * head_dim,
        num_attention_heads=8,
        max_position_embeddings=131072,
        rope_parameters={"rope_type": rope_type, **parameters},
    )
    frequencies, attention_factor = ROPE_INIT_FUNCTIONS[rope_type](config, device="cpu")
    return frequencies.tolist(), attention_factor


@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("factor", [1.0, 8.0, 32.0])
@pytest.mark.parametrize("scaling", ["linear", "llama3", "yarn"])
def test_every_scaling_rule_gives_the_reference_frequencies(scaling, factor, head_dim):
    own = {"theta": 500000.0, "scaling": scaling, "factor": factor}
    theirs = {"rope_theta": 500000.0, "factor": factor}
    if scaling == "llama3":
        bounds = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        own |= bounds | {"original_context": 8192}
        theirs |= bounds | {"original_max_position_embeddings": 8192}
    if scaling == "yarn":
        own |= {"original_context": 4096, "beta_fast": 24.0, "beta_slow": 2.0}
        theirs |= {"original_max_position_embeddings": 4096, "beta_fast": 24.0, "beta_slow": 2.0}

    expected, attention_factor = reference(scaling, head_dim, **theirs)

    assert inverse_frequencies(Rope(**own), head_dim) == pytest.approx(expected, rel=2e-6)
    if scaling == "yarn":
        assert yarn_attention_factor(factor) == pytest.approx(attention_factor)


def test_without_scaling_the_first_pair_turns_one_radian_and_the_others_follow_the_base():
    assert inverse_frequencies(Rope(theta=10000.0, factor=8.0), 4) == pytest.approx((1.0, 0.01))


def test_a_yarn_ramp_without_width_is_a_step():
    rope = Rope(theta=10000.0, scaling="yarn", factor=4.0, original_context=32, beta_fast=1e6, beta_slow=1e6)
    plain = inverse_frequencies(Rope(theta=10000.0), 64)
    assert inverse_frequencies(rope, 64)[1:] == pytest.approx([f / 4.0 for f in plain[1:]])
