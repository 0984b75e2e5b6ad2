"""The device's division of blocks between link and CPU workers is the plan's, bit for bit."""

import ctypes
import random

import pytest

from dualpace.plan import cooperation
from dualpace.plan.cooperation import Belief, Rates, Seen
from dualpace.plan.structs import ITEM_SPLITS
from tests.cooperate.compiled import cooperative

from .compiled import compiled

DOUBLE, INT = ctypes.c_double, ctypes.c_int32


class _Rates(ctypes.Structure):
    _fields_ = [(name, DOUBLE) for name in Rates._fields]


class _Belief(ctypes.Structure):
    _fields_ = [("rates", _Rates), ("trust", DOUBLE)]


class _Division(ctypes.Structure):
    _fields_ = [("recalled", INT), ("attended", INT), ("seconds", DOUBLE)]


class _Seen(ctypes.Structure):
    _fields_ = [(name, INT if name in ("answered", "late") else DOUBLE) for name in Seen._fields]


@pytest.fixture(scope="module")
def plan():
    return cooperative("bf16", 128, 4, 16, kv_heads=8)


@pytest.fixture(scope="module")
def device(plan, tmp_path_factory):
    loaded = compiled(plan, tmp_path_factory.mktemp("division"), "division_of.cpp")
    for name in ("block_bytes", "answer_share", "trusted"):
        getattr(loaded, name).restype = DOUBLE
    return loaded


def test_sizes_are_the_plans(device, plan):
    assert device.block_bytes() == plan.pages[0].block_bytes
    assert device.answer_share() == cooperation.answer_share(plan.model, plan.attention.split_tokens)
    assert ITEM_SPLITS * plan.attention.split_tokens == 1024


def test_divisions_are_equal(device, plan):
    chance, found = random.Random(1), _Division()
    block, answers = plan.pages[0].block_bytes, device.answer_share()
    shared = 0
    for _ in range(5_000):
        rates = Rates(
            *(chance.uniform(1e9, 200e9) for _ in range(2)), chance.uniform(1e8, 15e9), chance.choice((0, 1e-4))
        )
        blocks, workers = chance.randrange(5_000), chance.choice((0, 0.3, 1, 4, 16, 64))
        device.divide(blocks, ctypes.byref(_Rates(*rates)), DOUBLE(workers), ctypes.byref(found))
        expected = cooperation.divide(blocks, block, answers, rates, workers)
        assert (found.recalled, found.attended, found.seconds) == expected
        shared += 0 < expected.attended < blocks
    assert shared > 1_000


def test_what_is_learnt_is_equal(device):
    chance = random.Random(2)
    belief = Belief(Rates(51e9, 95e9, 8e9, 5e-5))
    theirs = _Belief(_Rates(*belief.rates), belief.trust)
    distrusted = 0
    for turn in range(2_000):
        late = chance.choice((0, 0, chance.randrange(9)))
        seen = Seen(
            *(chance.choice((0.0, chance.uniform(1, 1e9))) for _ in range(4)), answered=chance.randrange(3), late=late
        )
        belief = cooperation.learn(belief, seen)
        device.learn(ctypes.byref(theirs), ctypes.byref(_Seen(*seen)))
        assert (*(getattr(theirs.rates, name) for name in Rates._fields), theirs.trust) == (*belief.rates, belief.trust)
        assert device.trusted(ctypes.byref(theirs), 16) == belief.workers(16)
        assert bool(device.probes(ctypes.byref(theirs), ctypes.c_uint64(turn))) == belief.probes(turn)
        distrusted += belief.workers(16) == 0
    assert 100 < distrusted < 1_900
