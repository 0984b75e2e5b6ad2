"""Shapes in GGUF headers, written by the format's own library; broken and hostile files end in one kind of error."""

import contextlib
import struct

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dualpace.plan.checkpoint import CheckpointError, read_checkpoint
from dualpace.plan.gguf_header import MAX_ARRAY, read_header
from dualpace.plan.plan import Rope
from dualpace.plan.rope import inverse_frequencies
from dualpace.plan.shape import complete


def write(path, arch="llama", tensors=(), tokens=2000, **fields):
    writer = gguf.GGUFWriter(path, arch)
    numbers = {
        "block_count": 2,
        "embedding_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "feed_forward_length": 96,
        "context_length": 512,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 500000.0,
    } | fields
    for key, value in numbers.items():
        if isinstance(value, str):
            writer.add_string(f"{arch}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{arch}.{key}", value)
        elif value is not None:
            writer.add_uint32(f"{arch}.{key}", value)
    writer.add_token_list([f"token {i}" for i in range(tokens)])
    writer.add_token_scores([0.0] * tokens)
    for name, values in (("token_embd.weight", np.zeros((320, 64), np.float32)), *tensors):
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_shape_of_a_llama(tmp_path):
    shape = complete(read_checkpoint(write(tmp_path / "model.gguf")).shape)
    assert (shape.family, shape.layers, shape.hidden, shape.heads, shape.kv_heads) == ("llama", 2, 64, 4, 2)
    assert (shape.head_dim, shape.intermediate, shape.vocab, shape.context) == (16, 96, 320, 512)
    assert (shape.norm_eps, shape.rope_theta) == (1e-5, 500000.0)


def test_the_head_is_tied_unless_the_file_has_one(tmp_path):
    head = ("output.weight", np.zeros((320, 64), np.float32))
    assert read_checkpoint(write(tmp_path / "tied.gguf")).shape.tie_embeddings is True
    assert read_checkpoint(write(tmp_path / "untied.gguf", tensors=[head])).shape.tie_embeddings is False


def test_gemma_has_its_window_and_the_family_bases(tmp_path):
    path = write(
        tmp_path / "model.gguf", "gemma3",
        **{"block_count": 12, "attention.sliding_window": 512, "attention.key_length": 32, "rope.freq_base": None},
    )  # fmt: skip
    shape = complete(read_checkpoint(path).shape)
    assert (shape.sliding_window, shape.sliding_pattern, shape.head_dim) == (512, 6, 32)
    assert (shape.rope_theta, shape.rope_local_theta) == (1e6, 1e4)


def test_gemma_2_may_have_a_soft_cap_of_attention_scores(tmp_path):
    path = write(tmp_path / "model.gguf", "gemma2", attn_logit_softcapping=50.0)
    assert read_checkpoint(path).shape.attention_softcap == 50.0


def test_llama3_scaling_is_found_again_in_the_frequency_divisors(tmp_path):
    rule = Rope(theta=500000.0, scaling="llama3", factor=32.0, original_context=8192)
    plain = inverse_frequencies(Rope(theta=500000.0), 16)
    divisors = np.array([f / s for f, s in zip(plain, inverse_frequencies(rule, 16), strict=True)], np.float32)
    path = write(tmp_path / "model.gguf", tensors=[("rope_freqs.weight", divisors)])
    scaling = read_checkpoint(path).shape.rope_scaling
    assert (scaling.type, scaling.factor, scaling.original_context) == ("llama3", 32.0, 8192)

    path = write(tmp_path / "other.gguf", tensors=[("rope_freqs.weight", divisors[::-1].copy())])
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"expert_count": 8}, "expert_count"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0 is not supported for llama"),
        ({"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}, "longrope"),
        ({"rope.dimension_count": 8}, "rope.dimension_count"),
        ({"attention.value_length": 8}, "attention.value_length"),
        ({"block_count": None}, "block_count"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(fields, named, tmp_path):
    with pytest.raises(CheckpointError, match=named):
        read_checkpoint(write(tmp_path / "model.gguf", **fields))


def test_an_unknown_architecture_is_refused_by_name(tmp_path):
    with pytest.raises(CheckpointError, match="'mamba'"):
        read_checkpoint(write(tmp_path / "model.gguf", "mamba"))


def test_vocabularies_are_walked_over_and_short_arrays_kept(tmp_path):
    assert "tokenizer.ggml.tokens" not in read_header(write(tmp_path / "a.gguf", tokens=MAX_ARRAY + 1)).metadata
    assert read_header(write(tmp_path / "b.gguf", tokens=2)).metadata["tokenizer.ggml.tokens"] == ("token 0", "token 1")


def test_a_header_cut_anywhere_is_refused(tmp_path):
    path = write(tmp_path / "model.gguf", tokens=4)
    whole = path.read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in range(read_header(path).data_start - 32):
        cut.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"cut\.gguf"):
            read_checkpoint(cut)


HEAD = b"GGUF" + struct.pack("<I", 3)
KEY = struct.pack("<Q", 1) + b"k"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04",
        b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        HEAD + struct.pack("<QQ", 2**63, 0),
        HEAD + struct.pack("<QQ", 0, 2**63),
        HEAD + struct.pack("<QQQ", 0, 1, 2**63) + bytes(64),
        HEAD + struct.pack("<QQ", 0, 1) + KEY + struct.pack("<IIQ", 9, 8, 2**60) + bytes(64),
        HEAD + struct.pack("<QQ", 0, 1) + KEY + struct.pack("<IIQ", 9, 0, 2**60) + bytes(64),
        HEAD + struct.pack("<QQ", 0, 1) + KEY + struct.pack("<IIQ", 9, 9, 1) + bytes(64),
        HEAD + struct.pack("<QQ", 0, 1) + KEY + struct.pack("<I", 99) + bytes(64),
        HEAD + struct.pack("<QQ", 0, 2) + 2 * (KEY + struct.pack("<IB", 0, 1)) + bytes(64),
        HEAD + struct.pack("<QQ", 1, 0) + KEY + struct.pack("<I", 2**31) + bytes(64),
    ],
)
def test_hostile_headers_are_refused_at_once(data, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"model\.gguf"):
        read_checkpoint(path)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_flipped_bytes_are_read_or_refused(data, tmp_path):
    source = tmp_path / "model.gguf"
    if not source.exists():
        write(source, tokens=4)
    damaged = bytearray(source.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, 900))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged)
    with contextlib.suppress(CheckpointError):
        read_checkpoint(path)
