import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualpace.appliance.stops import StopMatcher


def run(stops: list[str], pieces: list[str]) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    text = "".join([matcher.push(piece) for piece in pieces])
    return text + matcher.flush(), matcher.stopped


def oracle(stops: list[str], text: str) -> tuple[str, bool]:
    """The earliest end of any stop string, found by looking at every prefix."""
    for end in range(len(text) + 1):
        completed = [stop for stop in stops if text[:end].endswith(stop)]
        if completed:
            return text[: end - max(map(len, completed))], True
    return text, False


def test_text_without_stop_strings_passes_at_once():
    matcher = StopMatcher([])
    assert matcher.push("anything") == "anything"


def test_a_stop_string_over_several_pieces_is_swallowed_with_what_follows():
    assert run(["STOP"], ["one S", "TO", "P two"]) == ("one ", True)


def test_only_what_could_still_become_a_stop_string_is_held():
    matcher = StopMatcher(["STOP", "\n\n"])
    assert matcher.push("a\n") == "a"
    assert matcher.push("bST") == "\nb"
    assert matcher.push("STO") == "ST"
    assert matcher.flush() == "STO"


def test_a_repeated_beginning_falls_back_to_the_right_place():
    assert run(["aab"], ["aaaab!"]) == ("aa", True)


@pytest.mark.parametrize("stops", [["abc", "b"], ["b", "abc"]])
def test_the_stop_string_completed_first_wins(stops: list[str]):
    assert run(stops, ["xabc"]) == ("xa", True)


def test_of_stop_strings_that_end_together_the_longest_wins():
    assert run(["c", "abc"], ["xabc"]) == ("x", True)


def test_nothing_follows_a_stop_string():
    matcher = StopMatcher(["."])
    assert matcher.push("a.b") == "a"
    assert matcher.push("c") == ""
    assert matcher.flush() == ""


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.text("abc", max_size=5), max_size=8),
)
def test_the_result_does_not_depend_on_how_the_text_is_cut(stops: list[str], pieces: list[str]):
    assert run(stops, pieces) == oracle(stops, "".join(pieces))


@given(st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.text("ab", max_size=12))
def test_no_more_is_held_than_the_longest_beginning_of_a_stop_string(stops: list[str], text: str):
    matcher = StopMatcher(stops)
    passed = matcher.push(text)
    if not matcher.stopped:
        beginnings = {stop[:end] for stop in stops for end in range(len(stop))}
        assert len(text) - len(passed) == max(len(b) for b in beginnings if text.endswith(b))
