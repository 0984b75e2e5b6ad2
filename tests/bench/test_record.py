"""What is kept of a run: no more for a token, little for a request."""

import tracemalloc
from array import array

from dualpace.bench.answer import Answer
from dualpace.bench.record import MOST_KINDS, OTHERS, Record

ROOM = 256


def answer(at: float, tokens: int = 200) -> Answer:
    found = Answer(at, tokens)
    found.arrivals = array("d", (at + 0.1 + 0.01 * i for i in range(tokens)))
    found.end = found.arrivals[-1]
    found.usage = tokens
    return found


def test_memory_grows_by_a_line_a_request_however_long_the_answers():
    record = Record(0.0, 0.0)
    for i in range(2000):
        record.add(answer(i % 50))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for i in range(4000):
        record.add(answer(i % 50))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / 4000 < ROOM
    assert record.gaps.sum() == 6000 * 199
    assert record.pieces_by_slot.sum() == record.pieces == 6000 * 200


def test_failures_and_the_warm_up_leave_no_gaps():
    record = Record(0.0, 10.0)
    record.add(answer(9.9))
    failed = answer(11.0)
    failed.fail("stream: broken off")
    record.add(failed)
    assert record.gaps.sum() == 0
    assert record.pieces == 200
    assert record.columns()["error"].tolist() == [0, 1]


def test_errors_of_which_each_is_of_its_own_kind_are_not_all_kept():
    record = Record(0.0, 0.0)
    for i in range(MOST_KINDS + 50):
        failed = answer(0.0)
        failed.fail(f"HTTP 500: request {i}")
        record.add(failed)
    assert len(record.errors) == MOST_KINDS + 1
    assert [record.errors[int(code) - 1] for code in record.columns()["error"][-50:]] == [OTHERS] * 50
