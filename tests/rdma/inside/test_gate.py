"""Who is let in at the gate, and what becomes of those who are not; the same with adapters and with copies."""

import errno
import logging
import shutil
import socket
import threading
import time

import pytest

from dualpace.engine.certificate import Certificate
from dualpace.engine.gate import _STRANGERS
from dualpace.engine.link import Port
from dualpace.engine.ring import Finish, RingError
from dualpace.engine.traffic import FAILURES
from dualpace.engine.uplink import LaterError
from tests.certificates import make_certificate
from tests.rdma import prepared
from tests.scheduler.plans import TIGHT

from .conftest import RemoteToy
from .steps import again, comes_in, ends, is_free, other_goes_on, running, wait_for


@pytest.fixture
def toy(remote):
    return remote(TIGHT)


def come_in(uplink):
    uplink.fetch()
    return uplink.claim()


@pytest.mark.parametrize(
    ("changes", "cause", "words"),
    [
        ({"authority": None}, "tls", "--ca FILE trusts the certificate"),
        ({"ring": 2}, "refused", "there are 2, numbered from 0; raise nic.rings"),
        ({"ring": 1}, "busy", "ring 1 is in use"),
        ({"port": Port("rxe7", 1, 1)}, "local", "rxe7: .*name one that `ibv_devices` lists"),
        ({"key_file": "/absent"}, "local", "/absent: No such file"),
        ({"authority": "/absent"}, "local", "/absent: No such file or directory; name a PEM file with --ca"),
    ],
    ids=["certificate", "no such ring", "ring in use", "no such device", "no key", "no authority"],
)
def test_who_cannot_come_in_is_told_why_and_counts_it(toy, changes, cause, words):
    uplink = toy.uplink(**changes)
    with pytest.raises(RingError, match=words):
        come_in(uplink)
    assert uplink.traffic.failures == {cause: 1}
    assert cause in FAILURES
    assert uplink.traffic.connections == 0


def test_another_key_is_refused(toy, tmp_path):
    (tmp_path / "other").write_text("another-key-of-that-length\n")
    uplink = toy.uplink(key_file=str(tmp_path / "other"))
    with pytest.raises(RingError, match=r"the key is not that of nic.gate.key_file"):
        uplink.fetch()
    assert (uplink.traffic.attempts, uplink.traffic.failures) == (1, {"refused": 1})


def garbled(peer, context):
    peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def closing(peer, context):
    context.wrap_socket(peer, server_side=True).close()


def saying_nonsense(peer, context):
    with context.wrap_socket(peer, server_side=True) as encrypted:
        encrypted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        encrypted.recv(1 << 16)


@pytest.mark.parametrize(
    ("meets", "cause"),
    [(None, "unreachable"), (garbled, "tls"), (closing, "greeting"), (saying_nonsense, "greeting")],
    ids=["nobody there", "no TLS", "closes", "no sense"],
)
def test_an_engine_that_is_not_there_or_another_in_its_place_may_pass(toy, secrets, meets, cause):
    context = Certificate("tls", str(secrets / prepared.CERTIFICATE), str(secrets / prepared.CERTIFICATE_KEY)).context
    with socket.create_server(("127.0.0.1", 0)) as other:
        uplink = toy.uplink(gate_port=other.getsockname()[1])

        def meet():
            with other.accept()[0] as peer:
                meets(peer, context)

        thread = threading.Thread(target=meet if meets else other.close)
        thread.start()
        if meets is None:
            thread.join()
        with pytest.raises(LaterError, match=r"the engine at 127.0.0.1:\d+: "):
            uplink.fetch()
        thread.join()
    assert (uplink.traffic.attempts, uplink.traffic.failures) == (1, {cause: 1})


def test_what_comes_in_is_counted(toy):
    traffic = toy.rings[0].uplink.traffic
    assert (traffic.attempts - traffic.failures.total(), traffic.connections) == (2, 1)


def test_a_ring_that_is_in_use_may_be_free_later(toy):
    uplink = toy.uplink()
    uplink.fetch()
    with pytest.raises(LaterError, match=r"every ring is in use; raise nic.rings"):
        uplink.claim()
    toy.rings[0].close()
    comes_in(uplink).close()
    assert uplink.traffic.failures["busy"] >= 1


def test_another_layout_is_refused(toy, monkeypatch):
    monkeypatch.setattr("dualpace.engine.uplink.layout_hash", lambda plan: "00000000deadbeef")
    with pytest.raises(RingError, match=r"layout 00000000deadbeef, the engine's is [0-9a-f]{16}: use one version"):
        come_in(toy.uplink())


def test_a_frontend_that_talks_is_cut_off(toy):
    running(toy)
    toy.rings[0].transport._connection.control.send(b"x")
    assert ends(toy.rings[0]) == [Finish.ENGINE_GONE]
    assert toy.rings[0].uplink.traffic.faults["closed"] == 1
    wait_for(lambda: any("cut off for what it said" in line for line in toy.said))
    again(toy)


def test_an_engine_that_goes(toy):
    running(toy)
    toy.gate.close()
    assert ends(toy.rings[0]) == [Finish.ENGINE_GONE]
    assert toy.rings[0].uplink.traffic.faults["closed"] == 1
    with pytest.raises(LaterError):
        toy.rings[0].uplink.claim()
    assert toy.rings[0].uplink.traffic.failures == {"unreachable": 1}
    toy.gate.close = lambda: None


def test_a_certificate_that_has_changed_is_used_by_the_next_connection(toy, secrets, tmp_path, caplog):
    old = shutil.copy(secrets / prepared.CERTIFICATE, tmp_path / "old.crt")
    make_certificate(secrets, "gate")
    with caplog.at_level(logging.INFO, "dualpace.engine"):
        with pytest.raises(RingError, match="--ca FILE trusts"):
            toy.uplink(authority=str(old)).fetch()
        again(toy, ring=1)  # it reads its authority anew, too
    assert any("gate.crt has changed" in message for message in caplog.messages)
    other_goes_on(toy, ring=0)  # who is in stays so


def test_a_key_that_has_changed_is_asked_for_by_the_gate_and_shown_by_frontends(toy, secrets):
    before = (secrets / prepared.KEY).read_text()
    (secrets / prepared.KEY).write_text("fedcba9876543210fedcba9876543210\n")
    again(toy)
    (secrets / "old").write_text(before)
    with pytest.raises(RingError, match="the key is not that of"):
        toy.uplink(key_file=str(secrets / "old")).fetch()


def test_files_that_cannot_be_used_leave_the_gate_as_it_was(toy, secrets, tmp_path, caplog):
    kept = {name: shutil.copy(secrets / name, tmp_path / name) for name in (prepared.KEY, prepared.CERTIFICATE)}
    (secrets / prepared.KEY).write_text("short\n")
    (secrets / prepared.CERTIFICATE_KEY).unlink()
    uplink = toy.uplink(key_file=str(kept[prepared.KEY]), authority=str(kept[prepared.CERTIFICATE]))
    uplink.fetch()
    uplink.fetch()
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [message.partition(":")[0] for message in said] == 2 * ["what was read before stays in use"]


def test_an_address_of_ipv6_has_brackets(remote, monkeypatch):
    monkeypatch.setattr(RemoteToy, "host", "::1")
    toy = remote(TIGHT)
    assert toy.said[0].startswith(f"frontends come in at [::1]:{toy.gate.address[1]}, ")
    other_goes_on(toy)
    with pytest.raises(RingError, match=r"the engine at \[::1\]:\d+: .*--ca FILE"):
        toy.uplink(authority=None).fetch()


def test_strangers_at_the_gate_are_sent_away(toy):
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"", bytes(1000)):
        with socket.create_connection(toy.gate.address) as stranger:
            stranger.sendall(said)
    wait_for(lambda: toy.gate._ends["greeting"] == 3)
    other_goes_on(toy)


def test_what_nobody_foresaw_is_counted_and_the_gate_stays(toy, monkeypatch):
    class UnforeseenError(Exception):
        pass

    def fails(*_):
        raise UnforeseenError("of a kind that the gate has not heard of")

    toy.rings[0].close()
    wait_for(lambda: is_free(toy, 0))
    with monkeypatch.context() as patch:
        patch.setattr("dualpace.engine.gate.frontend_files", fails)
        with pytest.raises(LaterError):
            toy.rings[0].uplink.fetch()
        wait_for(lambda: toy.gate._ends["failed"] == 1)
        patch.setattr(toy.gate, "_attached", fails)  # it holds a ring by then
        with pytest.raises(LaterError):
            toy.rings[0].uplink.claim()
        wait_for(lambda: toy.gate._ends["failed"] == 2)
    (line, *_) = [line for line in toy.said if "which nobody had foreseen" in line]
    assert "UnforeseenError: of a kind" in line
    assert not toy.gate._strangers
    again(toy)
    other_goes_on(toy)


def test_strangers_keep_no_frontend_out(toy):
    toy.rings[0].close()
    silent = [socket.create_connection(toy.gate.address) for _ in range(_STRANGERS + 8)]
    try:
        wait_for(lambda: toy.gate._ends["greeting"] >= 1)
        again(toy)
    finally:
        for stranger in silent:
            stranger.close()


@pytest.mark.parametrize("said", [b"", b"\x16"])
def test_who_does_not_go_on_is_sent_away(toy, monkeypatch, said):
    monkeypatch.setattr("dualpace.engine.gate._STRANGER_S", 0.2)
    with socket.create_connection(toy.gate.address, timeout=30) as silent:
        silent.sendall(said)
        assert silent.recv(1) == b""
    wait_for(lambda: toy.gate._ends["greeting"] == 1)


def test_silence_does_not_hold_up_the_engines_end(toy):
    running(toy)
    with socket.create_connection(toy.gate.address), socket.create_connection(toy.gate.address) as dripping:
        dripping.send(b"\x16")
        wait_for(lambda: len(toy.gate._strangers) == 2)
        begin = time.monotonic()
        toy.gate.close()
        assert time.monotonic() - begin < 2
    toy.gate.close = lambda: None


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "Too many open files"), RuntimeError("can't start new thread")]
)
def test_a_connection_that_cannot_be_accepted_is_not_the_last(toy, error):
    listener = toy.gate._listener

    class Failing:
        fileno = listener.fileno

        def accept(self):
            toy.gate._listener = listener
            listener.accept()[0].close()
            raise error

    toy.gate._listener = Failing()
    for _ in range(2):
        socket.create_connection(toy.gate.address).close()
    wait_for(lambda: toy.gate._ends["accept"] == 1)
    again(toy)
