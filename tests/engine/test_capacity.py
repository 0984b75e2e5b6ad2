"""What the plan counts is what the engine allocates."""

import ctypes
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from dualpace.engine.executor import Executor
from dualpace.engine.kernels import Kernels
from dualpace.model.random import random_weights
from dualpace.plan import abi
from dualpace.plan.manifest import HOST_ENGINE, read_manifest
from dualpace.plan.memory import host_activation_bytes, logit_bytes, product_bytes
from dualpace.plan.plan import Plan


def allocated(plan: Plan, weights: Mapping[str, torch.Tensor], kernels: Kernels) -> tuple[int, int, int]:
    """Bytes of an executor's tensors: activations with all that is neither weights, KV nor logits; logits; KV."""
    step = abi.view("StepBuffers", plan)()
    executor = Executor(plan, weights, kernels, ctypes.addressof(step))
    logits = executor.buffers["logits"].nbytes
    kv = sum(pool.nbytes for pool in executor.pools)
    owned = [*executor.buffers.values(), executor._workspace, *executor._angles]
    return sum(tensor.nbytes for tensor in owned) - logits, logits, kv


def test_a_plans_memory_map_is_what_the_executor_allocates(bundle: Path):
    plan = read_manifest(bundle).plan
    activations, logits, kv = allocated(plan, random_weights(plan), Kernels(bundle / HOST_ENGINE))
    tokens = plan.schedule.programs[-1].tokens
    assert plan.memory.activations == activations + product_bytes(plan.model, tokens)
    scratch = logit_bytes(plan.model, plan.schedule.max_batch)
    assert plan.memory.logits == logits + scratch, "the sampler has its own, if there is a thread for each row"
    assert plan.memory.kv == kv


@pytest.mark.parametrize(("name", "dtype"), [("gemma3", "bf16"), ("qwen2", "bf16"), ("llama", "fp16")])
def test_activations_of_every_dtype_are_fp32_and_the_workspace_is_counted(name, dtype, tiny, kernels_of):
    case = tiny(name, dtype)
    rows, tokens = case.plan.schedule.max_batch, case.plan.schedule.programs[-1].tokens
    splits = -(-case.plan.schedule.max_context // case.plan.attention.split_tokens)
    samples = case.plan.schedule.programs[-1].samples
    counted = host_activation_bytes(case.plan.model, rows, samples, tokens, splits)
    assert counted == allocated(case.plan, case.weights, kernels_of(case.library))[0]


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_no_product_of_a_chunk_allocates_more_than_is_counted(dtype, tiny, kernels_of):
    case = tiny("llama", dtype)
    step = abi.view("StepBuffers", case.plan)()
    executor = Executor(case.plan, case.weights, kernels_of(case.library), ctypes.addressof(step))
    tokens = case.plan.schedule.programs[-1].tokens
    counted = product_bytes(case.plan.model, tokens)
    for name, x, y in (("qkv", "x", "qkv"), ("o", "attn", "y"), ("gate_up", "x", "gate_up"), ("down", "act", "y")):
        with torch.profiler.profile(profile_memory=True) as profile:
            executor._multiply(executor.buffers[x], case.weights[f"layers.0.{name}"], None, executor.buffers[y])
        new = sum(max(event.self_cpu_memory_usage, 0) for event in profile.events())
        assert 0 < new <= counted
