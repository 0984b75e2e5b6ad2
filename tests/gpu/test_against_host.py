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

COMPARED = ["g4-d128-p16-bf16", "g3-d96-p8-fp16", "g8-d80-p16-fp32", "windows-g4-d256-p16-bf16"]


@pytest.fixture(scope="module", params=COMPARED)
def plan(request):
    return PLANS[request.param]


@pytest.fixture(scope="module")
def host(plan, store):
    return HostKernels(compile_engine(host_twin(plan), store))


@pytest.mark.parametrize("name", ["edges", "mixed"])
def test_append_and_attention_agree_with_the_host(plan, cubin_files, host, name):
    from .device import Cubin

    batch = Batch(plan, batches(plan)[name])
    kernels = Kernels(Cubin(cubin_files[plan.name]), batch)
    model, queries = plan.model, batch.qkv.clone()
    for group, pool in enumerate(batch.pools):
        host_pool, host_qkv = pool.cpu(), queries.float().cpu()
        host_out = torch.full((batch.tokens, model.heads, model.head_dim), torch.nan)
        angles = torch.empty(batch.tokens, model.head_dim)
        workspace = torch.empty(host.workspace_bytes, dtype=torch.uint8)
        step, frequencies = batch.step.cpu(), batch.frequencies[group].cpu()
        norms = [norm.cpu() for norm in (batch.q_norm, batch.k_norm)]
        host.dp_rope_angles(step.data_ptr(), frequencies.data_ptr(), 1.0, angles.data_ptr())
        host.dp_rope_append(
            step.data_ptr(),
            group,
            angles.data_ptr(),
            *(norm.data_ptr() for norm in norms),
            host_qkv.data_ptr(),
            host_pool.data_ptr(),
        )
        host.dp_attention(
            step.data_ptr(), group, host_qkv.data_ptr(), host_pool.data_ptr(), workspace.data_ptr(), host_out.data_ptr()
        )

        batch.qkv.copy_(queries)
        kernels.append(group)
        pages, offsets = batch.slots(group).unbind(1)
        appended, host_appended = pool[pages, :, :, offsets], host_pool.cuda()[pages, :, :, offsets].double()
        assert worst_error(appended, host_appended) < TOLERANCE[model.dtype]
        assert worst_error(kernels.attend(group), host_out.cuda().double()) < TOLERANCE[model.dtype]
