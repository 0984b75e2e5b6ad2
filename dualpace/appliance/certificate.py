"""TLS from files: a certificate and its key, which may change while they are served."""

import logging
import ssl
from pathlib import Path

from dualpace.plan.manifest import BundleError

# How often the files are looked at for changes.
LOOK_S = 10.0

logger = logging.getLogger(__name__)


class Certificate:
    """What connections are encrypted with: `context`, of TLS 1.2 and up."""

    def __init__(self, certificate: str, key: str) -> None:
        """Read the PEM files. Raises BundleError."""
        self._files = certificate, key
        self._seen = self._stamp()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load(self.context)

    def follow(self) -> None:
        """Read the files again if they have changed; new connections use them. What cannot be used is not taken."""
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            # Tried apart: of a pair that does not match, a context keeps the half that it was given first.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load(self.context)
        except BundleError as error:
            logger.error("the certificate stays as it was: %s", error)
            return
        logger.info("%s has changed and is used", self._files[0])

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(*self._files, password="")  # asks nobody for the password of a key that has one
        except OSError as error:
            why = "it is no PEM certificate with its key" if isinstance(error, ssl.SSLError) else error.strerror
            raise BundleError(
                f"serving.tls {' and '.join(self._files)}: {why}; mount them or change the spec"
            ) from error

    def _stamp(self) -> tuple[int, ...]:
        stamp: list[int] = []
        for file in map(Path, self._files):
            try:
                found = file.stat()
            except OSError:
                continue
            stamp += (found.st_ino, found.st_size, found.st_mtime_ns)
        return tuple(stamp)
