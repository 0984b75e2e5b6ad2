"""The log, and the ids by which its lines and answers are found for each other."""

import io
import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest

from dualpace.appliance import log
from dualpace.appliance.generate import Choice
from dualpace.appliance.log import JsonLines, event
from dualpace.appliance.tally import FINISHED, REJECTED
from dualpace.engine.ring import Finish

from .conftest import Frontend, ServeToy, wait_for
from .fake_ring import FakeRing
from .test_protocol import connected, post

BODY = {"model": "toy", "prompt": "hello", "max_tokens": 3}
Lines = Callable[[int], list[dict[str, Any]]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """What is said of so many requests, and no more, once it is: after their answers."""
    caplog.set_level(logging.INFO)

    def said() -> list[dict[str, Any]]:
        return [record.fields for record in caplog.records if record.getMessage() == "request"]

    def wait(count: int) -> list[dict[str, Any]]:
        wait_for(lambda: len(said()) >= count)
        assert len(said()) == count
        return said()

    return wait


def ask(toy: Frontend, headers: dict[str, str] | None = None, **fields: object) -> httpx.Response:
    return toy.http.post("/v1/completions", json=BODY | fields, headers=headers)


def test_a_request_has_a_line_without_its_text(toy: Frontend, lines: Lines):
    for count, streamed in enumerate((False, True), 1):
        answer = ask(toy, stream=streamed)
        assert lines(count)[-1] | {"seconds": 0} == {
            "request_id": answer.headers["x-request-id"], "client": "127.0.0.1", "method": "POST",
            "path": "/v1/completions", "status": 200, "seconds": 0, "prompt_tokens": len(toy.encode("hello")),
            "cached_tokens": 0, "completion_tokens": 3, "finish_reasons": ["length"],
        }  # fmt: skip


@pytest.mark.parametrize("streamed", [False, True])
def test_the_user_that_a_request_names_is_in_its_line(toy: Frontend, lines: Lines, streamed: bool):
    ask(toy, user="somebody", stream=streamed)
    ask(toy, user="x" * 1000)
    assert [line["user"] for line in lines(2)] == ["somebody", "x" * 256]


def test_the_clients_id_is_taken_over_and_others_are_made(toy: Frontend, lines: Lines):
    assert ask(toy, {"X-Request-Id": "trace-7"}).headers["x-request-id"] == "trace-7"
    made = [ask(toy, {"X-Request-Id": given}).headers["x-request-id"] for given in ("", "x" * 129, "two words")]
    made.append(ask(toy).headers["x-request-id"])
    assert len(set(made)) == 4
    assert all(own.startswith("req-") for own in made)
    assert {line["request_id"] for line in lines(5)} == {"trace-7", *made}


def test_every_answer_has_an_id_that_clients_show(serve: ServeToy, tmp_path: Path):
    keys = tmp_path / "keys"
    keys.write_text("key\n")
    toy = serve(api_key_file=str(keys), max_body="1KiB")
    with pytest.raises(openai.AuthenticationError) as caught:
        toy.openai.with_options(api_key="other").models.list()
    assert caught.value.request_id
    assert toy.openai.models.list()._request_id
    key = {"Authorization": "Bearer key"}
    assert "x-request-id" in toy.http.get("/v1/nothing", headers=key).headers
    assert "x-request-id" in ask(toy, key, user="x" * 2000).headers


def test_keys_are_told_apart_and_not_told(serve: ServeToy, tmp_path: Path, lines: Lines):
    keys = tmp_path / "keys"
    keys.write_text("first\nsecond\n")
    toy = serve(api_key_file=str(keys))
    names = []
    for count, key in enumerate(("first", "second", "first", "third"), 1):
        ask(toy, {"Authorization": f"Bearer {key}"})
        names.append(lines(count)[-1].get("key"))
    first, second, third, refused = names
    assert first == third != second
    assert {len(name) for name in (first, second)} == {8}
    assert refused is None


@pytest.mark.parametrize("streamed", [False, True])
def test_what_failed_says_why_even_after_its_headers_and_errors_are_no_more(
    serve: ServeToy, streamed: bool, lines: Lines
):
    toy = serve(FakeRing(fail_with=Finish.ENGINE_GONE), log="errors")
    assert ask(toy, temperature=9).status_code == 400
    ask(toy, stream=streamed)
    (line,) = lines(1)
    assert (line["status"], line["finish_reasons"]) == (200 if streamed else 503, ["error"])
    assert "the engine has stopped" in line["error"]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("part", ["take", "piece"])
def test_what_nobody_foresaw_is_answered_counted_and_logged_as_any_failure_is(
    serve: ServeToy, part: str, streamed: bool, lines: Lines, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> str:
        raise RuntimeError("planted")

    monkeypatch.setattr(Choice, part, fail)
    toy = serve(log="errors")
    answer = ask(toy, stream=streamed)
    assert answer.status_code == (200 if streamed else 500)
    assert "an internal error" in answer.text
    assert "planted" not in answer.text
    (line,) = lines(1)
    assert (line["request_id"], line["status"]) == (answer.headers["x-request-id"], answer.status_code)
    assert (line["finish_reasons"], "an internal error" in line["error"]) == (["error"], True)
    counted = toy.dispatcher.tally.totals()
    assert counted[FINISHED.name][FINISHED.values.index("error")] == 1
    assert counted[REJECTED.name][REJECTED.values.index("500")] == (0 if streamed else 1)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_left_is_no_failure_of_the_server(serve: ServeToy, streamed: bool, lines: Lines):
    toy = serve(FakeRing(held=True), log="errors")
    with connected(toy) as client:
        client.sendall(post(json.dumps(BODY | {"stream": streamed}).encode()))
        wait_for(lambda: toy.ring.running)
    abort = FINISHED.values.index("abort")
    wait_for(lambda: toy.dispatcher.tally.totals()[FINISHED.name][abort] == 1)
    assert toy.http.get("/health").status_code == 200
    assert lines(0) == []
    assert sum(toy.dispatcher.tally.totals()[REJECTED.name]) == 0


def test_a_refusal_says_why(toy: Frontend, lines: Lines):
    assert ask(toy, temperature=9).status_code == 400
    assert "temperature" in lines(1)[0]["error"]


def test_a_client_that_left_is_told_of(serve: ServeToy, lines: Lines):
    toy = serve(FakeRing(held=True))
    with connected(toy) as client:
        client.sendall(post())
        wait_for(lambda: toy.ring.running)
    assert lines(1)[0]["finish_reasons"] == ["abort"]


def test_probes_and_looks_at_metrics_that_succeed_have_no_line(serve: ServeToy, lines: Lines):
    toy = serve()
    toy.http.get("/health")
    toy.http.get("/metrics")
    toy.ring.alive = False
    toy.http.get("/health")
    assert [line["status"] for line in lines(1)] == [503]


def test_a_probe_that_fails_has_a_line_each_time_that_it_no_longer_succeeds(serve: ServeToy, lines: Lines):
    toy = serve()
    # Before it has ever succeeded a model loads, and whoever started this looks many times a second.
    for alive, told in ((False, 0), (False, 0), (True, 0), (False, 1), (False, 1), (True, 1), (False, 2)):
        toy.ring.alive = alive
        assert toy.http.get("/health").status_code == (200 if alive else 503)
        lines(told)


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    made = logging.Logger("made")
    yield made
    for handler in made.handlers:
        handler.close()


def test_an_exception_is_told_by_type_and_place_and_not_by_its_text(logger: logging.Logger):
    stream = io.StringIO()
    logger.addHandler(JsonLines(stream, {"frontend": 3}))
    try:
        try:
            int("what a user wrote")
        except ValueError as error:
            raise KeyError("what a user wrote") from error
    except KeyError:
        logger.exception("failed")
    logger.handlers[0].close()
    line = json.loads(stream.getvalue())
    assert (line["message"], line["level"], line["frontend"]) == ("failed", "error", 3)
    assert [told for told in line["exception"] if " " not in told] == ["KeyError", "ValueError"]
    assert "test_log.py" in line["exception"][1]
    assert "wrote" not in stream.getvalue()


@pytest.mark.parametrize(("name", "most", "text"), [("LINES", 5, ""), ("CHARACTERS", 5_000, "x" * 1_000)])
def test_a_reader_that_stalls_holds_up_nobody_and_what_it_misses_is_counted(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch, name: str, most: int, text: str
):
    class Stalled(io.StringIO):
        def write(self, text: str) -> int:
            reads.wait()
            return super().write(text)

    monkeypatch.setattr(log, name, most)
    reads, stream = threading.Event(), Stalled()
    handler = JsonLines(stream, {})
    logger.addHandler(handler)
    event(logger, logging.INFO, "first", {})
    wait_for(lambda: handler._lines.empty())  # the writer has it, and waits
    for number in range(20):
        event(logger, logging.INFO, "more", {"number": number, "body": text})
    reads.set()
    wait_for(lambda: handler._lines.empty())
    event(logger, logging.INFO, "last", {})
    handler.close()
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line.get("number") for line in told] == [None, 0, 1, 2, 3, 4, None]
    assert told[-1]["lines_left_out"] == 15


class Broken(io.StringIO):
    """A stream whose first write fails, as that to a full pipe does."""

    failed = False

    def write(self, text: str) -> int:
        if not self.failed:
            self.failed = True
            raise BlockingIOError
        return super().write(text)


def test_a_line_that_cannot_be_written_costs_none_after_it():
    stream = Broken()
    handler = JsonLines(stream, {})
    for message in ("lost", "kept"):
        handler.handle(logging.LogRecord("x", logging.INFO, "x.py", 1, message, (), None))
    handler.close()
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["kept"]
