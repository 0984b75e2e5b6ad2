"""What the device chooses and counts, beside the plan's own evaluation of the same cost model."""

from dataclasses import replace

import pytest

from dualpace.plan.abi import view
from dualpace.plan.attention_cost import SeenKeys, candidates, slices
from dualpace.plan.memory import attention_list_bytes
from dualpace.plan.structs import Route

from .batch import TOLERANCE, Batch, Row, batches
from .kernels import Kernels
from .plans import PLANS
from .test_attention import worst_error

pytestmark = pytest.mark.gpu

CTAS = 132


@pytest.fixture(scope="module", params=["g4-d128-p16-bf16", "windows-g3-d96-p8-bf16", "g9-d64-p16-bf16"])
def plan(request, plans):
    return plans[request.param]


@pytest.fixture(scope="module")
def cubin(plan, cubin_files):
    from dualpace.engine.device import Cubin

    return Cubin(cubin_files[plan.name])


def work(kernels, group):
    """The AttentionWork of a layer group."""
    place = view("StepBuffers", kernels.batch.plan).attention
    held = kernels.batch.step[place.offset : place.offset + place.size].cpu().numpy().tobytes()
    kind = view("AttentionWork", kernels.batch.plan)
    return (kind * len(kernels.batch.pools)).from_buffer_copy(held)[group]


def seen(batch, group):
    window = batch.plan.model.groups[group].window
    return [SeenKeys(max(p + 1 - window, 0) if window else 0, p + 1) for p in batch.positions]


ROWS = {
    "one short": [Row(40)],
    "one long": [Row(2000)],
    "alike": [Row(1024)] * 8,
    "unlike": [Row(n) for n in (2048, 30, 70, 1900, 300, 2, 800, 512)],
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_the_device_takes_the_route_that_the_plan_takes(rows, plan, cubin):
    kernels = Kernels(cubin, Batch(plan, rows), route=Route.AUTO, shares=CTAS)
    kernels.tasks()
    policy = plan.policy.model_copy(update={"ctas": CTAS})
    for group in range(len(plan.model.groups)):
        expected = candidates(policy, seen(kernels.batch, group), slices(plan.model), plan.attention.split_tokens)
        seconds = {(each.route, each.split_tokens): each.seconds for each in expected}
        found = work(kernels, group)
        assert seconds[Route(found.route).name.lower(), found.split_tokens] == pytest.approx(
            min(seconds.values()), rel=1e-5
        )


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_attention_by_the_chosen_route_matches_float64(rows, plan, cubin):
    kernels = Kernels(cubin, Batch(plan, rows), route=Route.AUTO, shares=CTAS)
    for group in range(len(plan.model.groups)):
        kernels.append(group)
        out = kernels.attend(group)
        assert worst_error(out, kernels.batch.attention(group)) < TOLERANCE[plan.model.dtype]


@pytest.mark.parametrize("route", [Route.SPLIT, Route.WORKQUEUE])
def test_a_step_counts_what_its_attention_does(route, plan, cubin):
    kernels = Kernels(cubin, Batch(plan, ROWS["unlike"]), route=route)
    tasks = kernels.tasks()
    model = plan.model
    for group in range(len(model.groups)):
        found = work(kernels, group)
        keys = sum(each.end - each.begin for each in seen(kernels.batch, group))
        assert (Route(found.route), found.launches) == (route, 1)
        assert found.split_tokens == (plan.attention.split_tokens if route == Route.SPLIT else 0)
        assert found.bytes == keys * slices(model) * 2 * model.head_dim * model.element_bytes
    counts = [len(mine) for token in kernels.task_ranges(tasks) for mine in token]
    first = work(kernels, 0)
    assert first.items == sum(counts)
    partial = kernels.slice_heads * (model.head_dim + 1) * 4
    assert first.merge_bytes == 2 * partial * sum(n for n in counts if n != 1)


def test_the_kernel_of_the_route_that_is_not_taken_does_nothing(plan, cubin):
    if plan.attention.flashinfer == "none":
        pytest.skip("FlashInfer has no kernel for these heads, or its headers are missing")
    for taken, idle in ((Route.WORKQUEUE, Route.FLASHINFER), (Route.FLASHINFER, Route.WORKQUEUE)):
        kernels = Kernels(cubin, Batch(plan, ROWS["unlike"]), route=taken)
        tasks, partials, out = kernels.tasks(), kernels.partials(), kernels.batch.poisoned()
        replace(kernels, route=idle).attention(0, kernels.batch.pools[0], tasks, partials, out)
        assert out.isnan().all()
        assert partials.lse.isnan().all()


@pytest.mark.parametrize("name", PLANS)
def test_lists_are_as_large_as_the_plan_says(name, plans, cubin_files):
    from dualpace.engine.device import Cubin

    plan, cubin = plans[name], Cubin(cubin_files[name])
    tokens, count = max(program.tokens for program in plan.schedule.programs), slices(plan.model)
    tasks = (tokens + plan.attention.spare_tasks) * count
    assert cubin.constant("dp_attention_max_tasks") == tasks
    groups = len(plan.model.groups)
    assert cubin.constant("dp_attention_tasks_bytes") == groups * attention_list_bytes(tokens, count, tasks)


def test_no_key_is_lost_when_the_batch_changes_between_steps(plan, cubin):
    kernels = Kernels(cubin, Batch(plan, batches(plan)["decode"]), route=Route.AUTO, shares=CTAS)
    tasks, partials = kernels.tasks(), kernels.partials()
    for rows in ROWS.values():
        each = replace(kernels, batch=Batch(plan, rows))
        each.append(0)
        each.list_tasks(tasks)
        out = each.batch.poisoned()
        each.attention(0, each.batch.pools[0], tasks, partials, out)
        assert worst_error(out, each.batch.attention(0)) < TOLERANCE[plan.model.dtype]
