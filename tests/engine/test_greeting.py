"""What is said at the gate, and what is made of peers that say something else."""

import json
import socket
import struct
import threading
import time

import pytest

from dualpace.engine import greeting
from dualpace.engine.greeting import Attach, GreetingError, Hello, Refused, RefusedError, Welcome, receive, send
from dualpace.engine.link import Peer

PEER = Peer(gid=":".join(8 * ["00ff"]), qpn=1, psn=2, mtu=3, reads=4)


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize(
    "message",
    [
        Hello(protocol=1, key="k", machine="aarch64", digest=""),
        Welcome(digest="d", files={"model/tokenizer.json": 3}),
        Attach(layout="l", ring=None, peer=PEER),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_arrives_as_it_was_sent(ends, message):
    ours, theirs = ends
    send(theirs, message)
    assert receive(ours, type(message)) == message


@pytest.mark.parametrize(
    ("field", "value"), [("gid", "::1"), ("qpn", -1), ("qpn", 1 << 24), ("psn", 1 << 24), ("mtu", 0), ("reads", 256)]
)
def test_an_end_that_no_adapter_has_is_no_message(ends, field, value):
    ours, theirs = ends
    send(theirs, Attach(layout="l", ring=0, peer=PEER.model_copy(update={field: value})))
    with pytest.raises(GreetingError, match="not the Attach"):
        receive(ours, Attach)


@pytest.mark.parametrize(
    ("field", "value"), [("key", "\ud800"), ("key", "ä"), ("machine", "a\nb"), ("digest", "d" * 129)]
)
def test_what_cannot_be_said_in_a_line_is_no_message(ends, field, value):
    ours, theirs = ends
    hello = {"protocol": 1, "key": "k", "machine": "m", "digest": ""} | {field: value}
    text = json.dumps({"Hello": hello}).encode()
    theirs.sendall(struct.pack("!I", len(text)) + text)
    with pytest.raises(GreetingError, match="not the Hello"):
        receive(ours, Hello)


def test_a_reader_that_is_slow_gets_all_of_it(ends):
    ours, theirs = ends
    content = bytes(3 << 20)
    writer = threading.Thread(target=greeting.send_bytes, args=(theirs, content))
    writer.start()
    taken = 0
    while taken < len(content):
        time.sleep(0.01)
        taken += len(ours.recv(1 << 16))
    writer.join()
    assert taken == len(content)


def test_a_ring_has_no_negative_number(ends):
    ours, theirs = ends
    send(theirs, Attach(layout="l", ring=0, peer=PEER).model_copy(update={"ring": -1}))
    with pytest.raises(GreetingError, match="not the Attach"):
        receive(ours, Attach)


def test_a_refusal_says_why(ends):
    ours, theirs = ends
    send(theirs, Refused(reason="the key is another"))
    with pytest.raises(RefusedError, match=r"^the key is another$"):
        receive(ours, Welcome)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "a message of 1195725856 bytes; this is no DualPace peer"),
        (struct.pack("!I", 2) + b"{}", "not the Hello of protocol 1; use one version at both ends"),
        (struct.pack("!I", 2) + b"\xff\xff", "not the Hello"),
        (struct.pack("!I", 13) + b'{"Hello": {}}', "not the Hello"),
        (struct.pack("!I", 13) + b'{"Attach":{}}', "not the Hello"),
        (struct.pack("!I", 60_000) + 60_000 * b"[", "not the Hello"),
        (struct.pack("!I", 99) + b"short", "the peer has closed the connection"),
        (b"", "the peer has closed the connection"),
    ],
)
def test_anything_else_is_no_message(ends, said, words):
    ours, theirs = ends
    theirs.sendall(said)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(GreetingError, match=words):
        receive(ours, Hello)


def test_a_peer_that_dawdles_is_given_up(ends):
    ours, theirs = ends
    given_up = threading.Event()

    def dawdle():
        while not given_up.wait(0.05):
            theirs.send(b"\0")

    send(theirs, Hello(protocol=1, key="k" * 1000, machine="", digest=""))
    ours.recv(4)
    peer = threading.Thread(target=dawdle)
    begin = time.monotonic()
    peer.start()
    with pytest.raises(TimeoutError):
        greeting.receive_bytes(ours, 5000, 0.3)
    given_up.set()
    peer.join()
    assert time.monotonic() - begin < 5
