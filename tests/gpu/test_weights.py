"""A checkpoint on the device is the one in memory."""

import pytest
import torch

from dualpace.model import weights
from dualpace.model.upload import Upload
from tests.model.plans import plan_for, tiny_model

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_checkpoint_arrives_on_the_device_in_the_type_of_the_plan(dtype, tmp_path, monkeypatch):
    # Less than a tensor, and no multiple of a row.
    monkeypatch.setattr(weights, "Upload", lambda: Upload(1000))
    model = tiny_model("llama")
    model.save_pretrained(tmp_path)
    plan = plan_for(model.config, "llama")
    plan = plan.model_copy(update={"model": plan.model.model_copy(update={"dtype": dtype})})
    expected = weights.load(plan, tmp_path)
    table = weights.load(plan, tmp_path, device="cuda")
    assert table.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(table[name].cpu(), tensor), name
