"""GGUF files become the safetensors they were made from."""

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from dualpace.model.gguf import convert
from dualpace.model.weights import WeightError, load
from dualpace.plan.plan import Rope

from .plans import FAMILIES, plan_for, tiny_model

DIGEST = "d" * 64


def gguf_tensors(model, family):
    """The model's tensors as the format has them, by its names."""
    arch = gguf.MODEL_ARCH.LLAMA if family == "mistral" else gguf.MODEL_ARCH[family.upper()]
    names = gguf.get_tensor_name_map(arch, model.config.num_hidden_layers)
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        values = tensor.numpy().copy()
        if family in ("gemma2", "gemma3") and name.endswith("norm.weight"):
            values += 1
        if family in ("llama", "mistral") and name.endswith(("q_proj.weight", "k_proj.weight")):
            # The format's order of a head's rows: 0, d/2, 1, d/2 + 1, ...
            heads = values.reshape(-1, 16, values.shape[1])
            values = heads[:, [row for pair in zip(range(8), range(8, 16), strict=True) for row in pair]]
            values = values.reshape(tensor.shape)
        tensors[names.get_name(name, (".weight", ".bias"))] = values
    return tensors


def write_gguf(path, model, family, tensors, kind=None):
    config = model.config
    writer = gguf.GGUFWriter(path, "llama" if family == "mistral" else family)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_embedding_length(config.hidden_size)
    writer.add_vocab_size(config.vocab_size)
    for name, values in tensors.items():
        if kind is not None and values.ndim == 2 and values.shape[1] % 32 == 0:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def llama(tmp_path):
    model = tiny_model("llama")
    return tmp_path, model, plan_for(model.config, "llama").model, gguf_tensors(model, "llama")


# The format has no head of their own for Gemma 2 models.
@pytest.mark.parametrize(
    ("family", "tied"), [*((family, True) for family in FAMILIES), *((f, False) for f in FAMILIES if f != "gemma2")]
)
def test_the_checkpoint_comes_back_bit_for_bit(family, tied, tmp_path):
    model = tiny_model(family, tied)
    with torch.no_grad():  # so that adding and taking away Gemma's offset is exact
        for parameter in model.parameters():
            parameter.copy_(parameter.half())
    plan = plan_for(model.config, family)
    path = write_gguf(tmp_path / "tiny.gguf", model, family, gguf_tensors(model, family))
    folder = convert(path, DIGEST, plan.model, tmp_path / "store")
    converted = load_file(folder / "model.safetensors")
    expected = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight" or not tied}
    assert converted.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(converted[name], tensor), name
    load(plan, folder)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_conversion_agrees_with_transformers(family, tmp_path):
    model = tiny_model(family)
    path = write_gguf(tmp_path / "tiny.gguf", model, family, gguf_tensors(model, family))
    folder = convert(path, DIGEST, plan_for(model.config, family).model, tmp_path / "store")
    reference = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    converted = load_file(folder / "model.safetensors")
    assert converted.keys() == reference.keys()
    for name, tensor in reference.items():
        assert torch.equal(converted[name], tensor), name


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_0", "BF16", "F16"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_quantised_tensors_are_dequantised_to_the_type_of_the_plan(kind, dtype, tmp_path):
    model = tiny_model("qwen2")
    kind = gguf.GGMLQuantizationType[kind]
    path = write_gguf(tmp_path / "tiny.gguf", model, "qwen2", gguf_tensors(model, "qwen2"), kind)
    folder = convert(path, DIGEST, plan_for(model.config, "qwen2", dtype).model, tmp_path / "store")
    name = "model.embed_tokens.weight"
    stored = gguf.quants.quantize(model.state_dict()[name].numpy(), kind)
    expected = torch.from_numpy(gguf.quants.dequantize(stored, kind))
    expected = expected.bfloat16() if dtype == "bf16" else expected
    assert torch.equal(load_file(folder / "model.safetensors")[name], expected)


def test_fused_tensors_are_taken_apart(tmp_path):
    model = tiny_model("qwen2")
    tensors = gguf_tensors(model, "qwen2")
    for kind in ("weight", "bias"):
        parts = [tensors.pop(f"blk.1.attn_{part}.{kind}") for part in "qkv"]
        tensors[f"blk.1.attn_qkv.{kind}"] = np.concatenate(parts)
    path = write_gguf(tmp_path / "tiny.gguf", model, "qwen2", tensors)
    converted = load_file(
        convert(path, DIGEST, plan_for(model.config, "qwen2").model, tmp_path / "store") / "model.safetensors"
    )
    for name, tensor in model.state_dict().items():
        assert torch.equal(converted[name], tensor), name


def test_the_same_file_is_converted_once_and_another_type_apart(llama):
    folder, model, plan, tensors = llama
    path = write_gguf(folder / "tiny.gguf", model, "llama", tensors)
    steps = []
    first = convert(path, DIGEST, plan, folder / "store", lambda done, total: steps.append((done, total)))
    assert steps[-1][0] == steps[-1][1] == sum(tensor.nbytes for tensor in model.state_dict().values())
    path.unlink()
    assert convert(path, DIGEST, plan, folder / "store") == first
    assert DIGEST in first.name
    with pytest.raises(FileNotFoundError):
        convert(path, DIGEST, plan.model_copy(update={"dtype": "bf16"}), folder / "store")


def test_a_failed_conversion_leaves_nothing_behind(llama):
    folder, model, plan, tensors = llama
    path = write_gguf(folder / "tiny.gguf", model, "llama", tensors)

    def fail(done, total):
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(path, DIGEST, plan, folder / "store", fail)
    assert list((folder / "store" / "weights").iterdir()) == []


def test_a_tensor_that_nothing_reads_fails_by_name(llama):
    folder, model, plan, tensors = llama
    tensors["blk.0.attn_q.bias"] = np.zeros(64, np.float32)
    path = write_gguf(folder / "tiny.gguf", model, "llama", tensors)
    with pytest.raises(WeightError, match=r"has blk\.0\.attn_q\.bias, which nothing"):
        convert(path, DIGEST, plan, folder / "store")


def test_a_missing_tensor_is_named(llama):
    folder, model, plan, tensors = llama
    del tensors["blk.1.ffn_up.weight"]
    path = write_gguf(folder / "tiny.gguf", model, "llama", tensors)
    with pytest.raises(WeightError, match=r"lacks model\.layers\.1\.mlp\.up_proj\.weight"):
        convert(path, DIGEST, plan, folder / "store")


def test_a_shape_that_is_not_the_plans_is_named(llama):
    folder, model, plan, tensors = llama
    tensors["output_norm.weight"] = np.zeros(47, np.float32)
    path = write_gguf(folder / "tiny.gguf", model, "llama", tensors)
    with pytest.raises(WeightError, match=r"output_norm\.weight is \[47\] where the plan has \[48\]"):
        convert(path, DIGEST, plan, folder / "store")


@pytest.mark.parametrize("kept", [0.95, 0.001])
def test_a_truncated_file_is_named(llama, kept):
    folder, model, plan, tensors = llama
    path = write_gguf(folder / "tiny.gguf", model, "llama", tensors)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(WeightError, match=r"tiny\.gguf.*truncated.*download it again"):
        convert(path, DIGEST, plan, folder / "store")


def test_frequency_divisors_must_be_the_scaling_of_the_plan(llama):
    folder, model, plan, tensors = llama
    tensors["rope_freqs.weight"] = np.full(8, 4, np.float32)
    path = write_gguf(folder / "tiny.gguf", model, "llama", tensors)
    with pytest.raises(WeightError, match=r"rope_freqs\.weight is not the plan's none rope scaling"):
        convert(path, DIGEST, plan, folder / "store")
    rope = Rope(theta=1e4, scaling="linear", factor=4)
    scaled = plan.model_copy(update={"groups": (plan.groups[0].model_copy(update={"rope": rope}),)})
    convert(path, DIGEST, scaled, folder / "store")
