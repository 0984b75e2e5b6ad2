"""A failure of any kind is no success, and is counted as what it is."""

import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from dualpace.bench.load import Load
from dualpace.bench.offer import OfferError, offer
from dualpace.bench.server import ServerError, describe
from tests.certificates import make_certificate

from .conftest import scripted


@pytest.mark.parametrize(
    ("end", "kind"),
    [
        ("error", "stream: generation_failed"),
        ("cut", "stream: broken off"),
        ("refuse", "HTTP 429: queue_full"),
        ("silent", "timeout: silent for 1 s"),
        ("no-done", "stream: broken off"),
        ("abort", "stream: ended with abort"),
        ("garbage", "stream: not an event of the API"),
    ],
)
def test_each_kind_by_its_name(server, end, kind):
    run = server.offer({"ttft": 0.01, "end": end}, rate=200, requests=20, workload="fixed:8,3", timeout=1)
    assert run.errors == {kind: 20}
    assert (run.requests, run.succeeded, run.output_tokens) == (20, 0, 0)
    assert run.latencies == {}
    assert (run.tokens_per_s.value, run.requests_per_s.value) == (0, 0)


def test_a_stream_that_does_not_end_is_given_up(server):
    run = server.offer({"tokens": 10**9, "burst": 200, "itl": 1e-5}, rate=20, requests=2, workload="fixed:8,3")
    assert run.errors == {"stream: without end": 2}


def test_failures_are_never_good_and_do_not_count_as_latency(server):
    run = server.offer({"end": "error"}, rate=200, requests=20, workload="fixed:8,3", limits={"ttft": 10})
    assert run.good is not None
    assert run.good.value == 0
    assert run.warnings[-1].startswith("No request succeeded")


def test_a_server_that_is_not_there(server):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    run = offer(Load(url=f"http://127.0.0.1:{port}", model="m", rate=100, requests=5, workload="fixed:8,3"), "")
    assert run.errors == {"connect: Connection refused": 5}


def test_a_server_is_known_by_its_certificate_where_that_is_told(tmp_path):
    certificate, key = map(str, make_certificate(tmp_path, "own"))
    other, _ = map(str, make_certificate(tmp_path, "other"))
    with scripted(certificate, key) as server:
        for trusted, failed in ((certificate, 0), (other, 3), (None, 3)):
            run = offer(server.load({}, rate=100, requests=3, workload="fixed:8,3", certificate=trusted), "")
            assert sum(run.errors.values()) == failed
            assert all(kind.startswith("connect: ") for kind in run.errors)
        assert describe(server.url, "", certificate).model == "scripted"
        with pytest.raises(ServerError, match=r"certificate verify failed.*; SSL_CERT_FILE=FILE trusts"):
            describe(server.url, "")


def test_an_answer_that_is_too_short_is_told(server):
    run = server.offer({"tokens": 2}, rate=200, requests=20, workload="fixed:8,3")
    assert (run.succeeded, run.other_lengths, run.output_tokens) == (20, 20, 40)
    assert "ignore_eos" in " ".join(run.warnings)


def test_a_closed_loop_goes_on_after_failures(server):
    run = server.offer({"end": "refuse"}, concurrency=4, requests=100, workload="fixed:8,3")
    assert run.errors == {"HTTP 429: queue_full": 100}


@pytest.mark.parametrize("workload", ["fixed:0,3", "fixed:a", "chat:1,2,3", "nothing"])
def test_a_workload_that_is_not_understood(server, workload):
    with pytest.raises(OfferError, match=workload):
        server.offer({}, rate=1, requests=1, workload=workload)


def test_a_server_that_wants_a_key_is_refused_with_the_options_that_name_one():
    class Guarded(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(401)

        def log_message(self, *arguments):
            pass

    with HTTPServer(("127.0.0.1", 0), Guarded) as server:
        Thread(target=server.handle_request).start()
        with pytest.raises(ServerError, match=r"answers 401 .*; name a key with --api-key or OPENAI_API_KEY"):
            describe(f"http://127.0.0.1:{server.server_port}", "")
