"""What a head of HTTP may not have, though the parser takes it."""

import re
from collections.abc import Sequence

from dualpace.appliance.errors import ApiError, invalid

VERSIONS = frozenset({"1.0", "1.1"})
# Who takes the first of several may take another than whoever passed them on.
_ONCE = (b"host", b"authorization", b"content-type", b"content-encoding", b"expect")
_HOST = re.compile(rb"([!$%&'()*+,;=_~.A-Za-z0-9-]*|\[[0-9A-Fa-f:.]+\])(:[0-9]*)?")


def fault_of(version: str, target: bytes, fields: Sequence[tuple[bytes, bytes]]) -> ApiError | None:
    """Why a request is refused by its head; names of `fields` are in lower case."""
    if version not in VERSIONS:
        return _invalid("this server speaks HTTP/1.1 and HTTP/1.0")
    if b"#" in target:
        return _invalid("the target has a fragment")
    names = [name for name, _ in fields]
    for name in _ONCE:
        if names.count(name) > 1:
            return _invalid(f"the field {name.decode()} stands more than once")
    if version == "1.1" and b"host" not in names:
        return _invalid("the field host is missing")
    for name, value in fields:
        match name:
            case b"host" if not _HOST.fullmatch(value):
                return _invalid("the field host holds no host")
            case b"expect" if value.lower() != b"100-continue" and version == "1.1":
                return ApiError(417, "The only expectation that is met is 100-continue.", code="invalid_http")
            case b"transfer-encoding" if version == "1.0":
                return _invalid("HTTP/1.0 has no transfer codings")
            case b"transfer-encoding" if value.strip().lower() != b"chunked":
                return _invalid("the only transfer coding that is read is chunked")
    return None


def _invalid(why: str) -> ApiError:
    return invalid(f"The request is not valid HTTP/1.1: {why}.", code="invalid_http")
