"""The core schema of YAML 1.2: what a plain (unquoted) scalar means. Source: YAML 1.2.2, section 10.3.2."""

import re

_NULL = re.compile("|null|Null|NULL|~")
_BOOL = re.compile("true|True|TRUE|false|False|FALSE")
_INT = re.compile("[-+]?[0-9]{1,18}")
_OCTAL = re.compile("0o[0-7]{1,18}")
_HEX = re.compile("0x[0-9a-fA-F]{1,15}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def resolve(text: str) -> str | int | float | bool | None:
    """The value of the plain scalar `text`. Decimal integers beyond 64 bits are floats, as no field takes them."""
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text, 8)
    if _HEX.fullmatch(text):
        return int(text, 16)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL.fullmatch(text):
        return float(text.replace(".", ""))
    return text
