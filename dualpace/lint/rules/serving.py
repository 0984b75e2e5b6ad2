"""The HTTP side."""

import ipaddress
from collections.abc import Iterator

from dualpace.diagnostic import Severity
from dualpace.lint.rule import Finding, LintContext, Rule


def open_to_network(context: LintContext) -> Iterator[Finding]:
    """Who can reach the port can use the model."""
    serving = context.spec.serving
    if serving.api_key_file is None and not _is_loopback(serving.host):
        message = f"serving.host is {serving.host}: anyone who reaches the port can use the model"
        yield Finding(("serving", "host"), message, "add `api_key_file:`, or listen on 127.0.0.1 behind a gateway")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


SERVING_RULES = (Rule("DP701", "open-to-network", Severity.WARNING, open_to_network),)
