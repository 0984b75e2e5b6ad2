"""The key that frontends of other hosts and the engine's gate share, in a file outside the bundle."""

from pathlib import Path

from dualpace.plan.manifest import BundleError

LEAST_BYTES = 16


def read_key(file: str) -> bytes:
    """The key in `file`, a line. Raises BundleError."""
    try:
        key = Path(file).read_bytes().strip()
    except OSError as error:
        raise BundleError(f"{file}: {error.strerror}; write a key there, like `openssl rand -hex 32` makes") from error
    if len(key) < LEAST_BYTES or not key.isascii() or len(key.split()) != 1:
        raise BundleError(
            f"{file}: this is no key, which is a line of at least {LEAST_BYTES} letters and digits; "
            "`openssl rand -hex 32` makes one"
        )
    return key
