"""Prefix reuse: what was computed once is found again, by equal tokens alone, as far as a window lets it."""

import ctypes
import random

import pytest

from dualpace.engine.ring import Finish, SamplingParams
from dualpace.plan import abi

from .plans import ROOMY, TIGHT, VOCAB, small_plan
from .toy import continuation

PAGE = ROOMY.attention.page_size
TEXT = random.Random(0).choices(range(VOCAB), k=80)


def run(toy, prompt, max_tokens=1):
    request = toy.submit(prompt, SamplingParams(max_tokens=max_tokens))
    toy.drain()
    toy.check()
    return request


@pytest.mark.parametrize(
    ("length", "cached"), [(1, 0), (PAGE, 0), (PAGE + 1, PAGE), (2 * PAGE, PAGE), (2 * PAGE + 1, 2 * PAGE), (75, 72)]
)
def test_a_prompt_is_found_up_to_its_last_token(toys, length, cached):
    toy = toys(ROOMY)
    first, second = (run(toy, TEXT[:length]) for _ in range(2))
    assert (first.cached, second.cached) == (0, cached)
    assert toy.rings[0].status().reused == cached


@pytest.mark.parametrize("same", [0, PAGE - 1, PAGE, 3 * PAGE + 1])
def test_what_differs_is_computed(toys, same):
    toy = toys(ROOMY)
    run(toy, TEXT[:40])
    other = run(toy, [*TEXT[:same], (TEXT[same] + 1) % VOCAB, *TEXT[same + 1 : 40]])
    assert other.cached == same // PAGE * PAGE


def test_a_conversation_goes_on_from_what_was_generated(toys):
    toy = toys(ROOMY)
    first = run(toy, TEXT[:10], max_tokens=40)
    second = run(toy, [*TEXT[:10], *first.tokens, 5, 6, 7])
    # All but the last token generated have KV.
    assert second.cached == (10 + 40 - 1) // PAGE * PAGE


def test_rows_share_the_pages_of_a_prefix(toys):
    toy = toys(ROOMY)
    for tail in range(2):
        toy.submit([*TEXT[: 5 * PAGE], tail], SamplingParams(max_tokens=8))
        for _ in range(3):
            toy.step()
    status = toy.rings[0].status()
    assert (status.running, status.total_pages - status.free_pages) == (2, 5 + 2)
    toy.drain()
    toy.check()


def test_rows_that_compute_the_same_at_once_end_up_sharing_it(toys):
    toy = toys(ROOMY)
    for tail in range(4):
        toy.submit([*TEXT[:PAGE], tail], SamplingParams(max_tokens=4))
    for _ in range(4):
        toy.step()
    status = toy.rings[0].status()
    assert (status.running, status.total_pages - status.free_pages) == (4, 1 + 4)
    toy.drain()
    toy.check()


def test_pages_that_nobody_holds_are_kept_until_they_are_needed(toys):
    toy = toys(small_plan("cache", pages=(12,), max_batch=1))
    run(toy, TEXT[:32])
    assert toy.rings[0].status().cached_pages == 4
    assert toy.rings[0].status().free_pages == 12
    run(toy, [1] * 64)
    assert toy.rings[0].status().evicted == 0
    run(toy, [2] * 40)
    status = toy.rings[0].status()
    assert status.evicted == 5
    assert status.cached_pages == 12


def test_a_prefix_in_use_outlives_one_that_is_not(toys):
    toy = toys(small_plan("clock", pages=(12,), max_batch=1))
    for n in range(20):
        assert run(toy, TEXT[: 2 * PAGE + 1]).cached == (2 * PAGE if n else 0)
        run(toy, [n] * 17)


def test_a_window_needs_only_what_it_sees(toys):
    toy = toys(TIGHT)
    run(toy, TEXT[:60])
    window_pages = TIGHT.pages[1].pages
    assert window_pages < 96 // PAGE
    assert run(toy, TEXT[:60]).cached == 56
    # What lies before the window of a shorter prompt may be gone; then it is computed.
    run(toy, [3] * 60)
    assert run(toy, TEXT[:30]).cached in (0, 8, 16, 24)


def test_a_preempted_row_finds_its_pages(toys):
    toy = toys(small_plan("pair", pages=(13,), max_batch=2))
    requests = [toy.submit(TEXT[n : n + 30], SamplingParams(max_tokens=count)) for n, count in ((0, 30), (20, 60))]
    toy.drain()
    toy.check()
    status = toy.rings[0].status()
    assert status.preempted >= 1
    assert status.reused > 0
    assert [request.cached for request in requests] == [0, 0]


def test_without_reuse_everything_is_computed_and_nothing_is_kept(toys):
    toy = toys(small_plan("no reuse", pages=(13,), max_batch=2, prefix_reuse=False))
    assert [run(toy, TEXT[:30]).cached for _ in range(2)] == [0, 0]
    for n, count in ((0, 30), (0, 60)):
        toy.submit(TEXT[n : n + 30], SamplingParams(max_tokens=count))
    toy.drain()
    toy.check()
    status = toy.rings[0].status()
    assert status.preempted >= 1
    assert (status.reused, status.cached_pages) == (0, 0)


def test_keys_that_a_frontend_made_up_find_nothing(toys):
    toy = toys(ROOMY)
    run(toy, TEXT[: 2 * PAGE + 1])
    prompt = [(token + 1) % VOCAB for token in TEXT[: 2 * PAGE + 1]]
    request = toy.submit(prompt, SamplingParams(max_tokens=9))
    memory = abi.view("RingMemory", ROOMY).from_address(toy.memory.address)
    spans = [memory.rings[0].submits[n] for n in (0, 1)]
    keys = [ctypes.addressof(memory.rings[0].arena) + 4 * (span.arena_begin + span.arena_words) - 16 for span in spans]
    ctypes.memmove(keys[1], keys[0], 16)
    toy.drain()
    toy.check()
    assert (request.finish, request.cached) == (Finish.LENGTH, 0)
    assert request.tokens == continuation(ROOMY, prompt, request.params)[0]
