"""TLS from files: a certificate and its key, which may change while they are served."""

import ssl

from dualpace.engine.followed import Followed
from dualpace.plan.manifest import BundleError


class Certificate:
    """What connections are encrypted with: `context`, of TLS 1.2 and up."""

    def __init__(self, field: str, certificate: str, key: str) -> None:
        """Read the PEM files, which `field` of the spec names. Raises BundleError."""
        self._field, self._files = field, (certificate, key)
        self._followed = Followed(self._reload, *self._files)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load(self.context)

    def follow(self) -> None:
        """Read the files again if they have changed; no connection may be made of `context` meanwhile."""
        self._followed.follow()

    def _reload(self) -> str:
        # Tried apart: of a pair that does not match, a context keeps the half that it was given first.
        self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        self._load(self.context)
        return "new connections use it"

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(*self._files, password="")  # asks nobody for the password of a key that has one
        except OSError as error:
            why = "it is no PEM certificate with its key" if isinstance(error, ssl.SSLError) else error.strerror
            raise BundleError(
                f"{self._field} {' and '.join(self._files)}: {why}; mount them or change the spec"
            ) from error
