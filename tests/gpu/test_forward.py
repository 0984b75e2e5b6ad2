"""The step programs on the device: teacher-forced logits at every position against transformers in fp32."""

import ctypes
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from dualpace.build.compile import compile_libraries
from dualpace.build.store import Store
from dualpace.build.units import libraries
from dualpace.model.weights import DTYPES, load
from dualpace.plan.manifest import CUDA_CUBINS
from dualpace.plan.plan import Plan
from dualpace.plan.structs import StepKind
from dualpace.render.sources import render
from tests.engine.models import CASES, plan_of, tiny_model
from tests.engine.rows import Rows, reference_logits
from tests.engine.test_parity import teacher_forced, text

from .conftest import Silent

pytestmark = pytest.mark.gpu

# Largest difference of a logit in fp32; logits are up to about 10.
BOUND = 1e-3

EXACT = [(name, "fp32") for name in CASES]
ROUNDED = [*((name, "bf16") for name in CASES), ("llama", "fp16"), ("qwen3", "fp16")]


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


class Tiny(NamedTuple):
    """A case's model, computing in fp32 with weights rounded to the plan's dtype, and its checkpoint."""

    model: PreTrainedModel
    folder: Path
    plan: Plan


def tiny(name: str, dtype: str, folder: Path) -> Tiny:
    """The named case, its checkpoint written to `folder`."""
    model = tiny_model(CASES[name])
    model.save_pretrained(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(DTYPES[dtype]))
    return Tiny(model, folder, device_plan(folder, CASES[name].page_size, dtype))


@pytest.fixture(scope="session")
def tinies(tmp_path_factory):
    """Every model under test by case and dtype."""
    return {case: tiny(*case, tmp_path_factory.mktemp("-".join(case))) for case in (*EXACT, *ROUNDED)}


@pytest.fixture(scope="session")
def forward(tinies, store):
    """Rows of the case on the device."""
    from dualpace.engine.device import Cubin

    with ThreadPoolExecutor() as pool:
        plans = [each.plan for each in tinies.values()]
        cubins = dict(zip(tinies, pool.map(lambda plan: compile_step(plan, store), plans), strict=True))

    def make(*case: str) -> DeviceRows:
        each = tinies[case]
        return DeviceRows(each.plan, load(each.plan, each.folder), Cubin(*cubins[case]))

    return make


def compile_step(plan: Plan, store: Store) -> tuple[Path, ...]:
    """The cubins of `plan` without its scheduler, which takes longest and has tests of its own."""
    sources = render(plan)
    wanted = [
        library.model_copy(update={"units": tuple(u for u in library.units if u.source != "cuda/scheduler.cu")})
        for library in libraries(plan, sources)
        if library.output in CUDA_CUBINS
    ]
    return tuple(compile_libraries(wanted, sources, store, Silent()).values())


@pytest.mark.parametrize("case", EXACT, ids="-".join)
def test_fp32_logits_equal_the_reference_at_every_position(case, tinies, forward):
    rows = forward(*case)
    found = teacher_forced(rows, tinies[case].plan.attention.page_size, text(1), slot=2).cpu()
    assert (found - reference_logits(tinies[case].model, text(1))).abs().max() < BOUND


@pytest.mark.parametrize("case", ROUNDED, ids="-".join)
def test_16_bit_logits_err_less_than_the_reference_in_16_bits(case, tinies, forward):
    rows, (model, folder, plan) = forward(*case), tinies[case]
    found = teacher_forced(rows, plan.attention.page_size, text(3), slot=3).cpu()
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[case[1]], attn_implementation="eager")
    expected = reference_logits(model, text(3))
    error, their_error = found - expected, reference_logits(theirs, text(3)) - expected
    assert error.square().mean() < their_error.square().mean()
