"""TLS, whose files may change."""

import logging
import signal
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

import pytest

from dualpace.engine.certificate import Certificate
from dualpace.plan.manifest import BundleError
from tests.certificates import make_certificate

from .bundles import write_bundle
from .test_server import StartProcess, run, start  # noqa: F401

Made = tuple[Path, Path]


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str], Made]:
    """A certificate and its key, by name; the name again makes others of it."""
    return partial(make_certificate, tmp_path)


def test_https_is_served_with_the_files_of_the_spec(start: StartProcess, make: Callable[[str], Made]):  # noqa: F811
    certificate, key = make("own")
    process, url = start(tls={"certificate": str(certificate), "key": str(key)})
    assert url.startswith("https://127.0.0.1:")
    port = int(url.rpartition(":")[2])
    connection = HTTPSConnection("127.0.0.1", port, timeout=10, context=ssl.create_default_context(cafile=certificate))
    connection.request("GET", "/health")
    assert connection.getresponse().read().startswith(b'{"status":"ok"')
    assert connection.sock.version() == "TLSv1.3"
    plain = HTTPConnection("127.0.0.1", port, timeout=10)
    plain.request("GET", "/health")
    with pytest.raises((OSError, HTTPException)):
        plain.getresponse()
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 0


@pytest.mark.parametrize("left_out", ["certificate", "key"])
def test_files_that_cannot_be_used_are_refused_in_one_line(tmp_path: Path, make: Callable[[str], Made], left_out: str):
    files = dict(zip(("certificate", "key"), map(str, make("own")), strict=True))
    Path(files[left_out]).unlink()
    bundle = write_bundle(tmp_path / "bundle", tls=files)
    ended = run(bundle, "--rings", tmp_path / "rings")
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "serving.tls" in ended.stderr
    assert "No such file" in ended.stderr


def test_halves_of_two_pairs_are_refused(make: Callable[[str], Made]):
    with pytest.raises(BundleError, match="no PEM certificate with its key"):
        Certificate("serving.tls", str(make("one")[0]), str(make("two")[1]))


def served(certificate: Certificate, trusted: Path) -> bool:
    """Whether a client that trusts a certificate accepts what is served."""
    client, server = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=trusted)
    ends = [
        context.wrap_bio(client, server, server_hostname="127.0.0.1"),
        certificate.context.wrap_bio(server, client, server_side=True),
    ]
    try:
        for _ in range(4):
            for end in ends:
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
    except ssl.SSLCertVerificationError:
        return False
    return True


def test_changed_files_are_followed_once_they_match(make: Callable[[str], Made], tmp_path, caplog):
    certificate, key = make("own")
    followed = Certificate("serving.tls", str(certificate), str(key))
    old = tmp_path / "old.crt"
    old.write_bytes(certificate.read_bytes())
    certificate.write_bytes(make("other")[0].read_bytes())  # without its key yet
    with caplog.at_level(logging.INFO):
        followed.follow()
        followed.follow()
        assert served(followed, old)
        key.write_bytes((tmp_path / "other.key").read_bytes())
        followed.follow()
    assert served(followed, certificate)
    assert not served(followed, old)
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
