"""The cost model of attention: what it prefers, and that plan and device agree on it."""

import ctypes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualpace.plan.attention_cost import (
    SPLIT_SIZES,
    SeenKeys,
    candidates,
    route_seconds,
    route_taken,
    seen_keys,
    slices,
    split_work,
    workqueue_work,
)
from dualpace.plan.plan import AttentionPolicy, KernelCost

from .compiled import compiled
from .deployments import GEMMA_270M, LLAMA_8B, plan

PLAN = plan(LLAMA_8B)
SPLIT = PLAN.attention.split_tokens
COST = KernelCost(start=8e-6, key=1.2e-10, tail_key=1e-8, partial=2e-9, merge=1e-7)


def policy(own=COST, flashinfer=None, ctas=264):
    return AttentionPolicy(
        source="a test",
        measured=True,
        ctas=ctas,
        own=own,
        flashinfer_ctas=ctas if flashinfer else 0,
        flashinfer=flashinfer,
    )


def rows(*contexts):
    return [SeenKeys(0, context) for context in contexts]


def taken(seen, policy, route="auto"):
    return route_taken(policy, route, seen, 8, SPLIT)


class _Seen(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_int32), ("end", ctypes.c_int32), ("of_chunk", ctypes.c_bool))


class _Ctas(ctypes.Structure):
    _fields_ = (("own", ctypes.c_int32), ("flashinfer", ctypes.c_int32))


class _Cost(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_float) for name in KernelCost.model_fields)


class _Costs(ctypes.Structure):
    _fields_ = (("own", _Cost), ("flashinfer", _Cost))


class _Choice(ctypes.Structure):
    _fields_ = (("route", ctypes.c_uint32), ("split_tokens", ctypes.c_int32), ("seconds", ctypes.c_float))


@pytest.fixture(scope="module")
def device(tmp_path_factory):
    """The device's formulas, compiled by g++."""
    return compiled(PLAN, tmp_path_factory.mktemp("cost"), "cost_of.cpp")


def on_device(device, seen, policy):
    """The choice, and the seconds of the workqueue and of every split size."""
    choice, queue, splits = _Choice(), ctypes.c_float(), (ctypes.c_float * SPLIT_SIZES)()
    flashinfer = policy.flashinfer or COST
    costs = _Costs(*(_Cost(*cost.model_dump().values()) for cost in (policy.own, flashinfer)))
    device.taken(
        (_Seen * len(seen))(*((keys.begin, keys.end, False) for keys in seen)),
        len(seen),
        8,
        _Ctas(policy.ctas, policy.flashinfer_ctas),
        ctypes.byref(costs),
        ctypes.byref(choice),
        ctypes.byref(queue),
        splits,
    )
    return choice, [queue.value, *splits]


constants = st.builds(
    KernelCost,
    start=st.floats(1e-6, 2e-5),
    key=st.floats(1e-11, 1e-9),
    tail_key=st.floats(0, 1e-7),
    partial=st.floats(0, 1e-8),
    merge=st.floats(0, 5e-7),
)
seen = st.builds(
    lambda end, window: SeenKeys(max(end - window, 0), end), st.integers(1, 131072), st.integers(1, 200_000)
)


@settings(max_examples=300, deadline=None)
@given(
    batch=st.lists(seen, min_size=1, max_size=40),
    own=constants,
    flashinfer=st.none() | constants,
    ctas=st.integers(1, 1024),
)
def test_plan_and_device_agree(device, batch, own, flashinfer, ctas):
    asked = policy(own, flashinfer, ctas)
    choice, seconds = on_device(device, batch, asked)
    expected = [route_seconds(own, workqueue_work(batch, 8, ctas))]
    expected += [route_seconds(own, split_work(batch, 8, SPLIT << i, ctas)) for i in range(SPLIT_SIZES)]
    assert seconds == pytest.approx(expected, rel=1e-5)
    # Of routes that differ by less than single precision shows either may be taken.
    least = min(candidates(asked, batch, 8, SPLIT), key=lambda each: each.seconds)
    assert choice.seconds == pytest.approx(least.seconds, rel=1e-5)
    names = {1: "split", 2: "workqueue", 3: "flashinfer"}
    mine = {(each.route, each.split_tokens): each.seconds for each in candidates(asked, batch, 8, SPLIT)}
    assert mine[names[choice.route], choice.split_tokens] == pytest.approx(least.seconds, rel=1e-5)


def test_many_rows_of_one_length_that_fill_the_gpu_need_no_merge():
    assert taken(rows(*[4096] * 33), policy()).route == "split"
    assert taken(rows(*[4096] * 33), policy()).split_tokens >= 4096


def test_rows_of_many_lengths_are_queued():
    assert taken(rows(60_000, 2_000, 3_000, 4_000, 50_000, 2_500, 9_000, 7_000), policy()).route == "workqueue"


def test_a_faster_kernel_is_taken_where_it_is_faster():
    quick_start = COST.model_copy(update={"start": 4e-6, "key": 2e-10})
    both = policy(flashinfer=quick_start)
    assert taken(rows(64), both).route == "flashinfer"
    assert taken(rows(*[32768] * 8), both).route != "flashinfer"


def test_a_route_that_is_asked_for_is_taken_with_the_smallest_splits():
    batch = rows(*[4096] * 33)
    assert taken(batch, policy(), "workqueue").route == "workqueue"
    assert taken(batch, policy(), "split").split_tokens == SPLIT
    with pytest.raises(ValueError, match="flashinfer"):
        taken(batch, policy(), "flashinfer")


def test_rows_see_no_more_than_their_window():
    sliding = next(group for group in plan(GEMMA_270M).model.groups if group.window)
    assert seen_keys(sliding, 3, 2000) == [SeenKeys(2000 - 512, 2000)] * 3
    assert seen_keys(sliding, 1, 100) == [SeenKeys(0, 100)]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "dtype", "count"),
    [
        (32, 8, 128, "bf16", 8),
        (32, 1, 128, "bf16", 2),
        (17, 1, 128, "bf16", 2),
        (16, 1, 80, "fp32", 2),
        (9, 1, 264, "fp16", 2),
    ],
)
def test_a_large_group_of_heads_has_more_than_one_slice(heads, kv_heads, head_dim, dtype, count):
    shape = LLAMA_8B | {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "hidden": 4096}
    model = plan(shape).model.model_copy(update={"dtype": dtype})
    assert slices(model) == count
