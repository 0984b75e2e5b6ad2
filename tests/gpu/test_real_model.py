"""The quickstart's model on the device: teacher-forced logits of a text beside those of the CPU engine in fp32."""

import pytest
import torch
from transformers import Gemma3ForCausalLM

from dualpace.engine.kernels import Kernels
from dualpace.model.weights import load
from dualpace.plan.plan import Plan
from tests.engine.compiled import kernel_library
from tests.engine.rows import Rows, reference_logits
from tests.engine.test_real_model import BOUND, CHUNK, TOKENS, configured, converted_model, logits_of_text
from tests.plans import example

from .conftest import host_twin
from .test_forward import DeviceRows, compile_step

pytestmark = [pytest.mark.gpu, pytest.mark.model]


def plan_of(dtype: str) -> Plan:
    """The quickstart's for this GPU."""
    return example(
        "quickstart",
        model={"dtype": dtype},
        scheduler={"max_batch": 2, "prefill_chunk": CHUNK},
        target={"gpu": "h200", "cpu": False},
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The weights in a dtype."""
    folder = tmp_path_factory.mktemp("converted")
    return lambda dtype: converted_model(plan_of(dtype).model, folder)


@pytest.fixture(scope="module")
def exact(store):
    """What the CPU engine says in fp32, with the weights of `folder`."""
    plan = host_twin(plan_of("fp32"))
    library = kernel_library(plan, store.root)
    return lambda folder: logits_of_text(Rows(plan, load(plan, folder), Kernels(library)))


def on_device(plan: Plan, folder, store) -> torch.Tensor:
    from dualpace.engine.device import Cubin

    rows = DeviceRows(plan, load(plan, folder), Cubin(*compile_step(plan, store)))
    return logits_of_text(rows).cpu()


def test_fp32_logits_equal_the_cpu_engines(checkpoint, exact, store):
    folder = checkpoint("fp32")
    assert (on_device(plan_of("fp32"), folder, store) - exact(folder)).abs().max() < BOUND


def test_16_bit_logits_err_less_than_the_reference_in_16_bits(checkpoint, exact, store):
    plan = plan_of("bf16")
    folder = checkpoint("bf16")
    configured(folder, plan.model)
    reference = Gemma3ForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager")
    expected = exact(folder)
    error = on_device(plan, folder, store) - expected
    their_error = reference_logits(reference, TOKENS) - expected
    assert error.square().mean() < their_error.square().mean()
