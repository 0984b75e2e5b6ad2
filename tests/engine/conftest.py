from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from transformers import PreTrainedModel

from dualpace.build.bundle import build
from dualpace.build.store import Store
from dualpace.engine.kernels import Kernels
from dualpace.model.weights import DTYPES, load
from dualpace.plan.plan import Plan
from dualpace.plan.resolve import resolve
from dualpace.spec.models import Spec
from tests.engine.compiled import Quiet, kernel_library
from tests.engine.models import CASES, plan_of, tiny_model

# Fewer than a test's tokens, so that decode rows are split and merged.
SPLIT_TOKENS = 64

SHAPE = {
    "family": "qwen3",
    "layers": 2,
    "hidden": 64,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 64,
    "intermediate": 96,
    "vocab": 300,
    "context": 512,
}
SPEC = {
    "name": "random",
    "model": {"shape": SHAPE, "dtype": "fp32", "max_context": 512, "weights": {"random": 3}},
    "scheduler": {"max_batch": 4, "prefill_chunk": 32},
    "target": {"cpu": True, "kv_budget": "8MiB"},
}


class Tiny(NamedTuple):
    """A case's model computing in fp32 with weights rounded to `plan`'s dtype, and what serves it."""

    model: PreTrainedModel
    checkpoint: Path
    plan: Plan
    weights: dict[str, torch.Tensor]
    library: Path


@pytest.fixture(scope="session")
def store(request: pytest.FixtureRequest) -> Path:
    """Compiled libraries by content, kept from run to run."""
    return request.config.cache.mkdir("dualpace-store")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Callable[[str, str], Tiny]:
    """Makes the named case in a dtype."""

    @cache
    def make(name: str, dtype: str) -> Tiny:
        folder = tmp_path_factory.mktemp(name)
        model = tiny_model(CASES[name])
        model.save_pretrained(folder)
        plan = plan_of(folder, CASES[name].page_size, dtype)
        attention = plan.attention.model_copy(update={"split_tokens": SPLIT_TOKENS})
        plan = plan.model_copy(update={"attention": attention})
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.to(DTYPES[dtype]))
        return Tiny(model, folder, plan, load(plan, folder), kernel_library(plan, store))

    return make


@pytest.fixture
def kernels_of() -> Callable[..., Kernels]:
    """Opens a library, with the kernels of `isa` if one is named; skips if this machine lacks it."""

    def make(library: Path, isa: str = "") -> Kernels:
        kernels = Kernels(library)
        if isa and not kernels.use_isa(isa):
            pytest.skip(f"this machine has no {isa}")
        return kernels

    return make


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Path:
    folder = tmp_path_factory.mktemp("process") / "bundle"
    build(resolve(Spec.model_validate(SPEC), Path.cwd()), folder, Store(store), Quiet())
    return folder
