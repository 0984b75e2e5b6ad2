"""Spouts: what the ring library sends of event streams, and what it leaves to others."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualpace.appliance.spouts import Spouts
from dualpace.appliance.tally import GENERATED_TOKENS, ITL, Tally
from dualpace.engine.ring import Finish, TokenEvent

TAG, OTHER = 7, 8
BEFORE, AFTER = b'data: {"text":', b"}\n\n"


def token(tag: int, token: int) -> TokenEvent:
    return TokenEvent(tag, 0, token, 0.0, Finish.NONE, 1, 0)


def chunk(text: bytes) -> bytes:
    event = BEFORE + text + AFTER
    return b"%x\r\n%b\r\n" % (len(event), event)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        yield mine, theirs


@pytest.fixture
def tally() -> Tally:
    return Tally()


@pytest.fixture
def spouts(library: Path, tally: Tally, pair: tuple[socket.socket, socket.socket]) -> Spouts:
    spouts = Spouts(library, tally)
    spouts.learn(1, b'"one"')
    spouts.learn(2, b'" two"')
    spouts.open(TAG, pair[0].fileno(), BEFORE, AFTER, 10.0)
    return spouts


def test_tokens_are_sent_in_order_and_counted(spouts: Spouts, tally: Tally, pair: tuple[socket.socket, socket.socket]):
    assert spouts.pour([token(TAG, 1), token(TAG, 2), token(TAG, 1)], 10.5) == ([], [])
    assert pair[1].recv(4096) == chunk(b'"one"') + chunk(b'" two"') + chunk(b'"one"')
    *counts, total = tally.totals()[ITL.name]
    assert (sum(counts), total) == (3, 0.5)
    assert counts[next(at for at, bound in enumerate(ITL.bounds) if bound >= 0.5)] == 1
    assert tally.totals()[GENERATED_TOKENS.name] == [3]
    assert spouts.close(TAG) == (3, 10.5)
    assert not spouts.tags


def test_after_a_token_whose_text_is_not_known_nothing_of_its_stream_is_sent(
    spouts: Spouts, tally: Tally, pair: tuple[socket.socket, socket.socket]
):
    spouts.open(OTHER, pair[0].fileno(), b"", b"", 10.0)
    events = [token(TAG, 1), token(TAG, 3), token(TAG, 2), token(OTHER, 2)]
    assert spouts.pour(events, 11.0) == (events[1:3], [])
    assert spouts.pour(events[:1], 12.0) == (events[:1], [])
    assert pair[1].recv(4096) == chunk(b'"one"') + b'6\r\n" two"\r\n'
    assert tally.totals()[GENERATED_TOKENS.name] == [2]
    assert spouts.close(TAG) == (1, 11.0)
    spouts.open(TAG, pair[0].fileno(), BEFORE, AFTER, 12.0)
    assert spouts.pour([token(TAG, 1)], 13.0) == ([], [])


def test_an_end_and_what_is_of_others_is_left(spouts: Spouts, pair: tuple[socket.socket, socket.socket]):
    end = token(TAG, 1)._replace(finish=Finish.LENGTH)
    events = [token(OTHER, 1), token(TAG, 2), token(OTHER, 2), end]
    assert spouts.pour(events, 11.0) == ([events[0], events[2], end], [])
    assert pair[1].recv(4096) == chunk(b'" two"')


def test_it_is_told_how_much_of_a_chunk_a_socket_has_no_room_for(library: Path, tally: Tally):
    text = b'"' + b"x" * 100_000 + b'"'
    spouts = Spouts(library, tally)
    spouts.learn(1, text)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as mine:
        theirs, _ = listener.accept()
        spouts.open(TAG, mine.fileno(), BEFORE, AFTER, 10.0)
        whole = 0
        while (found := spouts.pour([token(TAG, 1)], 11.0)) == ([], []):
            whole += 1
        left, [(tag, begun, unsent)] = found
        assert (left, tag, begun) == ([], TAG, text)
        assert 0 < unsent < len(chunk(text))
        assert spouts.pour([token(TAG, 1)], 12.0) == ([token(TAG, 1)], [])
        assert spouts.close(TAG) == (whole + 1, 11.0)
        mine.close()
        with theirs, theirs.makefile("rb") as stream:
            assert stream.read() == (chunk(text) * (whole + 1))[:-unsent]


def test_a_client_that_is_gone_is_left_to_others(spouts: Spouts, pair: tuple[socket.socket, socket.socket]):
    pair[1].close()
    assert spouts.pour([token(TAG, 1)], 11.0) == ([token(TAG, 1)], [])
    assert spouts.close(TAG) == (0, 10.0)
