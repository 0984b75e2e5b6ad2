"""Loading safetensors into the weight table."""

import json
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from dualpace.model.weights import WeightError, load

from .plans import FAMILIES, plan_for, tiny_model


def expected_table(model, family):
    """The weight table as the module itself holds it."""
    decoder = model.model
    table = {"embed": decoder.embed_tokens.weight, "final_norm": decoder.norm.weight, "head": model.lm_head.weight}
    for n, layer in enumerate(decoder.layers):
        attention, mlp = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        entries = {
            "attn_norm": layer.input_layernorm.weight,
            "qkv": torch.cat([projection.weight for projection in projections]),
            "o": attention.o_proj.weight,
            "mlp_norm": layer.post_attention_layernorm.weight,
            "gate_up": torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
            "down": mlp.down_proj.weight,
        }
        if family == "qwen2":
            entries["qkv_bias"] = torch.cat([projection.bias for projection in projections])
        if family in ("qwen3", "gemma3"):
            entries |= {"q_norm": attention.q_norm.weight, "k_norm": attention.k_norm.weight}
        if family in ("gemma2", "gemma3"):
            entries |= {
                "post_attn_norm": layer.post_attention_layernorm.weight,
                "mlp_norm": layer.pre_feedforward_layernorm.weight,
                "post_mlp_norm": layer.post_feedforward_layernorm.weight,
            }
        table |= {f"layers.{n}.{name}": tensor for name, tensor in entries.items()}
    return table


def assert_same(table, expected, dtype=torch.float32):
    assert table.keys() == expected.keys()
    for name, tensor in expected.items():
        assert table[name].dtype == dtype
        assert torch.equal(table[name], tensor.detach().to(dtype)), name


@pytest.fixture
def llama(tmp_path):
    """A saved tiny Llama: (folder, plan, tensors by hub name)."""
    model = tiny_model("llama")
    model.save_pretrained(tmp_path)
    return tmp_path, plan_for(model.config, "llama"), load_file(tmp_path / "model.safetensors")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shard", ["10MB", "20KB"])
def test_a_checkpoint_of_any_family_loads_whole_or_sharded(family, shard, tmp_path):
    model = tiny_model(family)
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard == "20KB")
    assert_same(load(plan_for(model.config, family), tmp_path), expected_table(model, family))


def test_weights_arrive_in_the_type_of_the_plan(llama):
    folder, plan, _ = llama
    bf16 = plan.model_copy(update={"model": plan.model.model_copy(update={"dtype": "bf16"})})
    assert_same(load(bf16, folder), expected_table(tiny_model("llama"), "llama"), torch.bfloat16)


def test_a_tied_head_is_the_embedding_itself(tmp_path):
    model = tiny_model("qwen3", tied=True)
    model.save_pretrained(tmp_path)
    table = load(plan_for(model.config, "qwen3"), tmp_path)
    assert table["head"] is table["embed"]


@pytest.mark.parametrize("same", [True, False])
def test_a_saved_tied_head_must_equal_the_embedding(same, tmp_path):
    model = tiny_model("llama", tied=True)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if not same:
        tensors["lm_head.weight"][3, 5] += 1
    save_file(tensors, tmp_path / "model.safetensors")
    plan = plan_for(model.config, "llama")
    if same:
        assert_same(load(plan, tmp_path), expected_table(model, "llama"))
    else:
        with pytest.raises(WeightError, match="differs from the embedding"):
            load(plan, tmp_path)


@pytest.mark.parametrize(
    ("body", "head"),
    [("", "lm_head"), ("language_model.model.", "language_model.lm_head"), ("model.language_model.", "lm_head")],
)
def test_every_way_of_prefixing_the_decoder_is_known(llama, body, head):
    folder, plan, tensors = llama
    renamed = {
        head + ".weight" if name == "lm_head.weight" else body + name.removeprefix("model."): tensor
        for name, tensor in tensors.items()
    }
    if body:
        renamed["vision_tower.patch.weight"] = torch.zeros(2)
    save_file(renamed, folder / "model.safetensors")
    assert_same(load(plan, folder), expected_table(tiny_model("llama"), "llama"))


def test_saved_rotary_frequencies_are_not_weights(llama):
    folder, plan, tensors = llama
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    save_file(tensors, folder / "model.safetensors")
    load(plan, folder)


def test_a_tensor_that_nothing_reads_fails_by_name(llama):
    folder, plan, tensors = llama
    tensors["model.layers.1.self_attn.q_proj.bias"] = torch.zeros(64)
    tensors["vision_tower.patch.weight"] = torch.zeros(2)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(WeightError, match=r"layers\.1\.self_attn\.q_proj\.bias, vision_tower\.patch\.weight"):
        load(plan, folder)


def test_all_faults_are_listed_at_once(llama):
    folder, plan, tensors = llama
    del tensors["model.layers.0.mlp.up_proj.weight"]
    tensors["model.norm.weight"] = torch.zeros(47)
    tensors["model.layers.1.mlp.down_proj.weight"] = torch.zeros(48, 80, dtype=torch.int8)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(WeightError) as failure:
        load(plan, folder)
    assert "lacks model.layers.0.mlp.up_proj.weight" in str(failure.value)
    assert "model.norm.weight is [47] where the plan has [48]" in str(failure.value)
    assert "model.layers.1.mlp.down_proj.weight is I8" in str(failure.value)


def test_a_value_beyond_fp16_is_refused_by_name(llama):
    folder, plan, tensors = llama
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = 1e6
    save_file(tensors, folder / "model.safetensors")
    fp16 = plan.model_copy(update={"model": plan.model.model_copy(update={"dtype": "fp16"})})
    with pytest.raises(WeightError, match=r"up_proj\.weight has values beyond fp16"):
        load(fp16, folder)


@pytest.mark.parametrize("kept", [0.5, 0.001, 0.0])
def test_a_truncated_file_is_named(llama, kept):
    folder, plan, _ = llama
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(WeightError, match=r"model\.safetensors is truncated"):
        load(plan, folder)


def test_a_header_that_disagrees_with_its_data_is_refused(llama):
    folder, plan, _ = llama
    file = folder / "model.safetensors"
    data = file.read_bytes()
    size = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8 : 8 + size])
    header["model.norm.weight"]["shape"] = [24, 3]
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    with pytest.raises(WeightError, match=r"model\.safetensors"):
        load(plan, folder)


@pytest.fixture
def shards(tmp_path):
    model = tiny_model("llama")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    return tmp_path, plan_for(model.config, "llama"), sorted(tmp_path.glob("*.safetensors"))


def test_a_missing_shard_is_named(shards):
    folder, plan, files = shards
    files[1].unlink()
    with pytest.raises(WeightError, match=files[1].name):
        load(plan, folder)


def test_an_index_of_another_download_is_refused(shards):
    folder, plan, files = shards
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = next(
        file.name for file in files if file.name != content["weight_map"]["model.norm.weight"]
    )
    index.write_text(json.dumps(content))
    with pytest.raises(WeightError, match=r"disagree about model\.norm\.weight"):
        load(plan, folder)


def test_shards_without_their_index_are_refused(shards):
    folder, plan, _ = shards
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(WeightError, match=r"no model\.safetensors\.index\.json"):
        load(plan, folder)


def test_a_folder_without_weights_is_refused(llama, tmp_path_factory):
    with pytest.raises(WeightError, match="has no safetensors"):
        load(llama[1], tmp_path_factory.mktemp("empty"))


def test_progress_ends_at_the_bytes_of_the_table(llama):
    folder, plan, _ = llama
    steps = []
    table = load(plan, folder, lambda done, total: steps.append((done, total)))
    size = sum(tensor.nbytes for tensor in table.values())
    assert steps[-1] == (size, size)
    assert steps == sorted(steps)
