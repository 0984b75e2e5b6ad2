"""The kernels of the device beside those of the host, from the same inputs."""

import pytest
import torch

from dualpace.engine.kernels import Kernels as HostKernels

from .batch import TOLERANCE, Batch, batches
from .conftest import compile_engine, host_twin
from .kernels import Kernels
from .plans import PLANS
from .test_attention import worst_error

pytestmark = pytest.mark.gpu

COMPARED = [
    "g4-d128-p16-bf16",
    "g3-d96-p8-fp16",
    "g8-d80-p16-fp32",
    "windows-g4-d256-p16-bf16",
    "softcap-g2-d64-p16-fp32",
]


@pytest.fixture(scope="module", params=COMPARED)
def plan(request):
    return PLANS[request.param]


@pytest.fixture(scope="module")
def host(plan, store):
    return HostKernels(compile_engine(host_twin(plan), store))


@pytest.fixture(params=["edges", "mixed"])
def kernels(request, plan, cubin_files):
    from dualpace.engine.device import Cubin

    return Kernels(Cubin(cubin_files[plan.name]), Batch(plan, batches(plan)[request.param]))


def test_append_agrees_with_the_host(kernels, host):
    batch, heads = kernels.batch, kernels.batch.plan.model.heads
    tolerance = TOLERANCE[batch.plan.model.dtype]
    queries = batch.qkv.clone()
    for group, pool in enumerate(batch.pools):
        qkv, host_pool = queries.float().cpu(), pool.cpu()
        q_norm, k_norm, frequencies = batch.q_norm.cpu(), batch.k_norm.cpu(), batch.frequencies[group].cpu()
        step, angles = batch.step.cpu(), torch.empty(batch.tokens, batch.plan.model.head_dim)
        host.dp_rope_angles(step.data_ptr(), frequencies.data_ptr(), 1.0, angles.data_ptr())
        operands = (angles, q_norm, k_norm, qkv, host_pool)
        host.dp_rope_append(step.data_ptr(), group, *(operand.data_ptr() for operand in operands))

        batch.qkv.copy_(queries)
        kernels.append(group)
        pages, offsets = batch.slots(group).unbind(1)
        host_appended = host_pool.cuda()[pages, :, :, offsets].double()
        assert worst_error(pool[pages, :, :, offsets], host_appended) < tolerance
        assert worst_error(batch.qkv[:, :heads], qkv[:, :heads].cuda().double()) < tolerance


def test_attention_agrees_with_the_host(kernels, host):
    batch = kernels.batch
    for group, pool in enumerate(batch.pools):
        kernels.append(group)
        out = torch.full((batch.tokens, batch.plan.model.heads, batch.plan.model.head_dim), torch.nan)
        workspace = torch.empty(host.workspace_bytes, dtype=torch.uint8)
        step, qkv, host_pool = batch.step.cpu(), batch.qkv.float().cpu(), pool.cpu()
        operands = (qkv, host_pool, workspace, out)
        host.dp_attention(step.data_ptr(), group, *(operand.data_ptr() for operand in operands))
        assert worst_error(kernels.attend(group), out.cuda().double()) < TOLERANCE[batch.plan.model.dtype]
