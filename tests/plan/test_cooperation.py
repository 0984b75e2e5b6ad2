"""Who attends to blocks in host memory: over tables of rates, against every division; and after what was seen."""

from itertools import product

import pytest

from dualpace.plan import cooperation
from dualpace.plan.comparison import differences
from dualpace.plan.cooperation import Belief, Rates, Seen, answer_share, divide, learn, seconds
from dualpace.plan.report import text_report

from .deployments import LLAMA_8B, plan

GB = 1e9
BLOCK = 64 * 1024
ANSWERS = 0.004
H200_HOST = Rates(51 * GB, cooperation.DRAM, cooperation.WORKER, cooperation.WAIT)
# Links of PCIe 4 and 5 and one that is no bottleneck, slow and fast memory, slow and fast workers.
TABLE = [
    (Rates(link * GB, dram * GB, worker * GB, wait), workers)
    for link, dram, worker, wait, workers in product(
        (24, 51, 200), (40, 95, 400), (2, 8, 13), (0.0, 50e-6, 1e-3), (0.5, 1, 4, 16, 64)
    )
]


@pytest.mark.parametrize("blocks", [0, 1, 2, 17, 256])
def test_no_division_takes_less_and_none_as_quick_has_fewer_blocks_for_workers(blocks):
    for rates, workers in TABLE:
        found = divide(blocks, BLOCK, ANSWERS, rates, workers)
        times = [seconds(blocks, n, BLOCK, ANSWERS, rates, workers) for n in range(blocks + 1)]
        assert found.recalled + found.attended == blocks
        assert found.seconds <= min(times) + 1e-12, (rates, workers)
        fewest = next(n for n, time in enumerate(times) if time <= min(times) + 1e-12)
        # A block more is all that whole blocks leave between the closed form and the fewest.
        assert found.attended <= fewest + 1, (rates, workers)


@pytest.mark.parametrize(
    ("workers", "gain"), [(0, 1.0), (1, 1.17), (4, 1.7), (8, 1.85), (16, 1.85)]
)  # fmt: skip
def test_workers_of_an_h200s_host_gain(workers, gain):
    alone = divide(10_000, BLOCK, ANSWERS, H200_HOST, 0).seconds
    assert alone / divide(10_000, BLOCK, ANSWERS, H200_HOST, workers).seconds == pytest.approx(gain, abs=0.03)


def test_more_workers_than_memory_feeds_get_no_more_blocks():
    few, many = (divide(10_000, BLOCK, ANSWERS, H200_HOST, workers).attended for workers in (8, 64))
    assert few == many < 5_000


def test_workers_get_nothing_where_recall_ends_before_they_begin():
    assert divide(4, BLOCK, ANSWERS, H200_HOST._replace(wait=1e-3), 16).attended == 0
    assert divide(1000, BLOCK, ANSWERS, H200_HOST._replace(link=95 * GB), 16).attended == 0


def test_less_of_memory_for_all_makes_no_division_quicker():
    times = [divide(1000, BLOCK, ANSWERS, H200_HOST._replace(dram=d * GB), 16).seconds for d in range(10, 200, 10)]
    assert times == sorted(times, reverse=True)


def test_the_answers_of_llama_are_a_few_thousandths():
    assert answer_share(plan(LLAMA_8B).model, 256) == pytest.approx(4 * 32 * 129 / (1024 * 4096))


def host(belief, turn, *, slowed, blocks=1000, workers=16, due=3.0):
    """What a host shows whose workers run `slowed` times slower than H200_HOST's: late is what takes `due` times."""
    counted = belief.workers(workers)
    division = divide(blocks, BLOCK, ANSWERS, belief.rates, counted)
    attended = division.attended or (16 if belief.probes(turn) else 0)
    real = H200_HOST._replace(worker=H200_HOST.worker / slowed)
    took = seconds(blocks, attended, BLOCK, ANSWERS, real, workers)
    items = -(-attended // 64)
    alone = blocks * BLOCK / real.link
    late = items if attended and took > due * alone else 0
    # What is late is recalled after all.
    total = took if not late else due * alone + attended * BLOCK / real.link
    worker_seconds = attended * BLOCK / real.worker if not late else 0.0
    seen = Seen(
        recalled=(blocks - attended) * BLOCK,
        recall_seconds=(blocks - attended) * BLOCK / real.link,
        attended=0.0 if late else attended * BLOCK,
        worker_seconds=worker_seconds,
        answered=items - late,
        late=late,
    )
    return learn(belief, seen), total / alone


def run(belief, turns, slowed, start=0):
    times = []
    for turn in range(start, start + turns):
        belief, time = host(belief, turn, slowed=slowed)
        times.append(time)
    return belief, times


def test_under_interference_workers_get_less_and_the_pace_is_no_worse_than_recalls():
    belief, times = run(Belief(H200_HOST), 100, 1)
    assert times[-1] == pytest.approx(51 / 95, rel=0.02)
    belief, times = run(belief, 200, 10)
    assert max(times[50:]) <= 1.0 + 1e-9
    assert belief.rates.worker < H200_HOST.worker / 5
    belief, times = run(belief, 200, 1)
    assert times[-1] == pytest.approx(51 / 95, rel=0.02)


def test_workers_that_are_stopped_cost_one_turn_and_a_probe_now_and_then_until_they_answer():
    belief, times = run(Belief(H200_HOST), 4 * cooperation.PROBED, 1e9)
    assert sum(time > 1 for time in times) <= 6
    assert belief.workers(16) == 0
    belief, times = run(belief, 4 * cooperation.PROBED, 1)
    assert times[-1] == pytest.approx(51 / 95, rel=0.02)


def test_what_was_late_costs_trust_and_turns_without_it_give_it_back():
    belief = Belief(H200_HOST)
    assert learn(belief, Seen()) == belief
    halved = learn(belief, Seen(answered=4, late=4))
    assert (halved.trust, halved.workers(16)) == (0.5, 8)
    assert learn(halved, Seen(answered=1)).trust == 1.0
    lost = learn(belief, Seen(late=1))
    assert lost.workers(16) == 0
    assert [turn for turn in range(2 * cooperation.PROBED) if lost.probes(turn)] == [0, cooperation.PROBED]
    assert not any(belief.probes(turn) for turn in range(2 * cooperation.PROBED))
    assert learn(lost, Seen(answered=1)).workers(16) > 0


def test_measured_rates_are_believed_bit_by_bit():
    belief = Belief(H200_HOST)
    for _ in range(100):
        belief = learn(belief, Seen(recalled=20 * GB, recall_seconds=1, attended=4 * GB, worker_seconds=2, answered=1))
    assert belief.rates.link == pytest.approx(20 * GB, rel=1e-4)
    assert belief.rates.worker == pytest.approx(2 * GB, rel=1e-4)


def cooperating(mode="cooperative", **more):
    sizes = {"offload__host_budget": "64GiB", "target__kv_budget": "8GiB", "scheduler__max_batch": 64}
    return plan(LLAMA_8B, offload__mode=mode, **sizes, **more)


def test_a_plan_has_the_paces_with_and_without_workers():
    longest = [pace for pace in cooperating().cooperation if pace.context == 131_072]
    assert [pace.workers for pace in longest] == [0, 4, 8, 16]
    assert longest[0].attended == 0
    assert longest[0].host_seconds > longest[1].host_seconds > longest[2].host_seconds == longest[3].host_seconds
    assert all(pace.tokens_per_second == pace.rows / max(pace.host_seconds, pace.step_seconds) for pace in longest)


@pytest.mark.parametrize(("most", "shown"), [(1, {0, 1}), (6, {0, 4, 6}), (16, {0, 4, 8, 16}), (40, {0, 4, 8, 16, 40})])
def test_a_spec_caps_the_workers(most, shown):
    found = cooperating(offload__cpu_workers=most)
    assert found.offload.cpu_workers == most
    assert {pace.workers for pace in found.cooperation} == shown


def test_a_pace_without_workers_is_that_of_recall():
    recall, cooperative = cooperating("recall"), cooperating()
    alone = {pace.context: pace.host_seconds for pace in cooperative.cooperation if pace.workers == 0}
    assert alone == pytest.approx({pace.context: pace.link_seconds for pace in recall.recall})
    assert recall.cooperation == cooperative.recall == ()


def test_the_report_says_what_workers_do_and_that_it_was_not_measured():
    text = text_report(cooperating())
    assert "GB/s from host memory, 95 in it" in text
    assert "was not measured" in text


def test_paces_are_compared_by_context_and_workers():
    fields = {each.field for each in differences(cooperating(), cooperating(offload__cpu_workers=4))}
    assert "cooperation[131072 x 16].tokens_per_second" in fields
    assert "cooperation[131072 x 4].tokens_per_second" not in fields
