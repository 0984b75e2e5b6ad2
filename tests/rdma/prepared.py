"""What the tests in the guest find ready in a folder, as compiling there would take minutes; `prepare` fills it."""

from pathlib import Path

from tests.certificates import make_certificate
from tests.scheduler.engines import Libraries

KEY, CERTIFICATE, CERTIFICATE_KEY = "frontend.key", "gate.crt", "gate.key"
BUNDLE, REPLAY, CONTINUATION = "tiny.bundle", "replay.so", "continuation.txt"
GATE_PORT = 7471
PROMPT = [0, 72, 101, 108, 108, 111, 44, 32]
TOKENS = 12


def issue(folder: Path) -> None:
    """Write a key and a certificate."""
    (folder / KEY).write_text("0123456789abcdef0123456789abcdef\n")
    make_certificate(folder, "gate")


def libraries(folder: Path, name: str) -> Libraries:
    """The compiled libraries of a plan."""
    return Libraries(folder / name / "libengine.so", folder / name / "libring.so")
