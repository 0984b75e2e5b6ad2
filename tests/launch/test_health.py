"""`health` asks everything that is served here, and nothing else."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from dualpace import run_folder
from dualpace.cli.health import health
from dualpace.exits import Exit
from dualpace.run_folder import RunFolder


class _Answer(BaseHTTPRequestHandler):
    """200 if the server is healthy, else 503 with the reason."""

    def do_GET(self):
        self.send_response(200 if self.server.healthy else 503)
        self.end_headers()
        self.wfile.write(b"the engine's heartbeat stopped")

    def log_message(self, *_):
        pass


class Served:
    """A deployment that answers probes; `folder` is what its processes would share."""

    def __init__(self, healthy: bool) -> None:
        self._server = HTTPServer(("127.0.0.1", 0), _Answer)
        self._server.healthy = healthy
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.folder = RunFolder()
        self.folder.tell(self.url)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.folder.close()


@pytest.fixture(autouse=True)
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(run_folder, "SHARED_MEMORY", tmp_path)
    return tmp_path


@pytest.fixture
def well() -> Iterator[Served]:
    served = Served(healthy=True)
    yield served
    served.close()


@pytest.fixture
def ill() -> Iterator[Served]:
    served = Served(healthy=False)
    yield served
    served.close()


def failed(capsys: pytest.CaptureFixture[str], url: str = "") -> str:
    """What is said on stderr by a check that fails."""
    with pytest.raises(SystemExit) as ended:
        health(url)
    assert ended.value.code == Exit.FINDINGS
    return capsys.readouterr().err


def test_nothing_served_is_said(capsys):
    assert failed(capsys) == "dualpace: nothing is served on this machine yet\n"


def test_what_is_served_is_found(well, capsys):
    health()
    assert capsys.readouterr().out == f"{well.url}: healthy\n"


def test_one_of_several_that_takes_no_request_is_named_and_fails_the_check(well, ill, capsys):
    assert failed(capsys) == f"dualpace: {ill.url}: 503 the engine's heartbeat stopped\n"
    health(well.url)
    assert f"{ill.url}: 503" in failed(capsys, ill.url)


def test_an_address_needs_no_scheme(well, capsys):
    health(well.url.removeprefix("http://"))
    assert capsys.readouterr().out == f"{well.url}: healthy\n"


def test_what_is_served_where_there_is_no_shared_memory_is_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run_folder, "SHARED_MEMORY", tmp_path / "none")
    monkeypatch.setattr(run_folder.tempfile, "tempdir", str(tmp_path))
    served = Served(healthy=True)
    try:
        health()
    finally:
        served.close()
    assert capsys.readouterr().out == f"{served.url}: healthy\n"


def test_what_a_killed_run_left_is_not_asked(well, shared_memory, capsys):
    left = shared_memory / f"{run_folder.PREFIX}left"
    left.mkdir()
    (left / next(well.folder.path.iterdir()).name).write_text("http://127.0.0.1:1")
    health()
    assert capsys.readouterr().out == f"{well.url}: healthy\n"


def test_what_listens_in_another_network_is_not_asked(well, ill, capsys):
    """Containers that share memory have one each."""
    (told,) = ill.folder.path.iterdir()
    told.rename(told.with_name("url-1"))
    health()
    assert capsys.readouterr().out == f"{well.url}: healthy\n"


def test_an_address_where_nobody_listens_is_unhealthy(well, capsys):
    well.folder.tell("http://127.0.0.1:1")
    assert "http://127.0.0.1:1: [Errno 111] Connection refused\n" in failed(capsys)
