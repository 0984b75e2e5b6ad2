"""The step programs on the device: teacher-forced logits at every position against transformers in fp32."""

import ctypes
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from dualpace.model.weights import DTYPES, load
from dualpace.plan.plan import Plan
from dualpace.plan.structs import StepKind
from tests.engine.models import CASES, plan_of, tiny_model
from tests.engine.rows import Rows, reference_logits
from tests.engine.test_parity import teacher_forced, text

from .conftest import compile_engine

pytestmark = pytest.mark.gpu

# Largest difference of a logit in fp32; logits are up to about 10.
BOUND = 1e-3


class DeviceRows(Rows):
    """Rows whose step programs run on the device."""

    def _open(self, weights: Mapping[str, torch.Tensor], kernels: Any) -> Any:
        from dualpace.engine.capture import DeviceExecutor

        self._bytes = torch.zeros(ctypes.sizeof(self._step), dtype=torch.uint8, device="cuda")
        on_device = {name: tensor.cuda() for name, tensor in weights.items()}
        self._head = self._head.cuda()
        return DeviceExecutor(self._plan, on_device, kernels, self._bytes, lambda logits: None)

    def _run(self, tokens: int, samples: int) -> None:
        self._bytes.copy_(torch.frombuffer(self._step, dtype=torch.uint8))
        mixed = self._step.kind == StepKind.MIXED
        self._executor.launch(
            next(
                program
                for program in self._plan.schedule.programs
                if (program.kind == "mixed") == mixed and tokens <= program.tokens and samples <= program.rows
            )
        )


def device_plan(folder, page_size, dtype) -> Plan:
    """The plan of a checkpoint for this GPU."""
    found = plan_of(folder, page_size, dtype, gpu="h200")
    return found.model_copy(update={"attention": found.attention.model_copy(update={"split_tokens": 64})})


@pytest.fixture(scope="session")
def forward(tmp_path_factory, store):
    """Rows of the named case in a dtype on the device, its model in fp32 with weights of that dtype, and its folder."""
    from dualpace.engine.device import Cubin

    def make(name: str, dtype: str):
        folder = tmp_path_factory.mktemp(name)
        model = tiny_model(CASES[name])
        model.save_pretrained(folder)
        plan = device_plan(folder, CASES[name].page_size, dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.to(DTYPES[dtype]))
        return DeviceRows(plan, load(plan, folder), Cubin(compile_engine(plan, store))), model, folder

    return make


@pytest.mark.parametrize("name", CASES)
def test_fp32_logits_equal_the_reference_at_every_position(name, forward):
    rows, model, _ = forward(name, "fp32")
    found = teacher_forced(rows, CASES[name].page_size, text(1), slot=2).cpu()
    assert (found - reference_logits(model, text(1))).abs().max() < BOUND


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("name", CASES)
def test_16_bit_logits_err_less_than_the_reference_in_16_bits(name, dtype, forward):
    rows, model, folder = forward(name, dtype)
    found = teacher_forced(rows, CASES[name].page_size, text(3), slot=3).cpu()
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype], attn_implementation="eager")
    expected = reference_logits(model, text(3))
    error, their_error = found - expected, reference_logits(theirs, text(3)) - expected
    assert error.square().mean() < their_error.square().mean()
