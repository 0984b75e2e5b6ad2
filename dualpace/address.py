"""The address that a deployment is served at."""

import re
import socket
import ssl

_HOST_AND_PORT = re.compile(r"(?:\[([^][]*:[^][]*)\]|([^][:]+)):([0-9]{1,5})")


def bound(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A TCP socket at `host` and `port`, 0 for any; refused while another listens there, unless both are `shared`.

    Raises OSError.
    """
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared)
    try:
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made


def shown(host: str, port: int) -> str:
    """Both as in a URL: an address of IPv6 in brackets, since it has colons of its own."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parted(address: str) -> tuple[str, int]:
    """Host and port of an address as `shown` has it. Raises ValueError."""
    found = _HOST_AND_PORT.fullmatch(address)
    if not found or not 0 < int(found[3]) < 1 << 16:
        raise ValueError(f"{address}: write HOST:PORT, and [ADDRESS]:PORT for IPv6")
    return found[1] or found[2], int(found[3])


def refused(host: str, port: int, error: OSError) -> str:
    """What to say about an address that cannot be had."""
    return f"cannot listen on {shown(host, port)}: {error.strerror}; choose another with --host and --port"


def base_of(url: str) -> str:
    """The base of a server's URLs; without a scheme it is HTTP, as in "localhost:8000"."""
    return (url if "://" in url else f"http://{url}").rstrip("/")


def unreached(error: object) -> str:
    """Why a server could not be reached, with the remedy where there is one."""
    remedy = (
        "; SSL_CERT_FILE=FILE trusts the certificate in FILE" if isinstance(error, ssl.SSLCertVerificationError) else ""
    )
    return f"{error or type(error).__name__}{remedy}"
