"""The HTTP side."""

import ipaddress
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dualpace.diagnostic import Severity
from dualpace.lint.rule import Finding, LintContext, Rule
from dualpace.plan.api_keys import parse_api_keys
from dualpace.plan.quantity import size_text

# English text as UTF-8, in bytes a token.
TOKEN_BYTES = 4
# What `docker stop` waits before it kills.
STOP_SECONDS = 10


def open_to_network(context: LintContext) -> Iterator[Finding]:
    """Who can reach the port cannot use the model without a key."""
    serving = context.spec.serving
    if serving.api_key_file is None and not _is_loopback(serving.host):
        message = f"serving.host is {serving.host}: anyone who reaches the port can use the model"
        yield Finding(("serving", "host"), message, "add `api_key_file:`, or listen on 127.0.0.1 behind a gateway")


def host_form(context: LintContext) -> Iterator[Finding]:
    """The host is an address or a name, without scheme and port."""
    host = context.spec.serving.host
    name, port = _parts(host)
    if name != host:
        help_ = f"write `host: {name}`" + (f" and `port: {port}`" if port else "")
        yield Finding(("serving", "host"), f"serving.host is {host}, which is more than an address", help_)


def empty_key_file(context: LintContext) -> Iterator[Finding]:
    """A key file that is there has keys."""
    name = context.spec.serving.api_key_file
    with suppress(ValueError):
        if (file := _file(context, name)) and not parse_api_keys(_text(file)):
            yield Finding(("serving", "api_key_file"), f"serving.api_key_file {name} holds no key", "write one a line")


def key_file_form(context: LintContext) -> Iterator[Finding]:
    """Each line of a key file that is there is a key, and limits of its own if it has some."""
    name = context.spec.serving.api_key_file
    try:
        if file := _file(context, name):
            parse_api_keys(_text(file))
    except ValueError as error:
        yield Finding(("serving", "api_key_file"), f"serving.api_key_file {name}: {error}", "correct that line")


def readable_key_file(context: LintContext) -> Iterator[Finding]:
    """A key file that is there, of the API, of TLS or of frontends, is not readable by every user of the machine."""
    serving = context.spec.serving
    secrets: dict[tuple[str, ...], str | None] = {("serving", "api_key_file"): serving.api_key_file}
    if serving.tls:
        secrets["serving", "tls", "key"] = serving.tls.key
    if gate := context.spec.nic.gate:
        secrets |= {("nic", "gate", "tls", "key"): gate.tls.key, ("nic", "gate", "key_file"): gate.key_file}
    for path, name in secrets.items():
        if (file := _file(context, name)) and file.stat().st_mode & stat.S_IROTH:
            message = f"{'.'.join(path)} {name} can be read by every user of this machine"
            yield Finding(path, message, f"run `chmod 600 {name}`")


def small_body(context: LintContext) -> Iterator[Finding]:
    """A request body has room for the longest prompt."""
    plan = context.plan
    if plan and plan.serving.max_body < TOKEN_BYTES * plan.schedule.max_context:
        need = -(-TOKEN_BYTES * plan.schedule.max_context // 2**20)
        message = (
            f"serving.max_body is {size_text(plan.serving.max_body)}, too little for the text of a prompt of "
            f"{plan.schedule.max_context} tokens, which max_context allows"
        )
        yield Finding(("serving", "max_body"), message, f"raise it to {need}MiB or more")


def long_drain(context: LintContext) -> Iterator[Finding]:
    """Draining ends before a container is killed."""
    seconds = context.spec.serving.drain
    if seconds > STOP_SECONDS:
        message = f"serving.drain is {seconds:g} s, and `docker stop` kills after {STOP_SECONDS} s"
        help_ = f"lower it, or stop with `docker stop -t {seconds + 2:.0f}` or that grace period, and allow this here"
        yield Finding(("serving", "drain"), message, help_)


def low_port(context: LintContext) -> Iterator[Finding]:
    """The port needs no privileges."""
    port = context.spec.serving.port
    if 0 < port < 1024:
        message = f"serving.port is {port}, which needs privileges that the appliance does not ask for"
        yield Finding(("serving", "port"), message, "write 8000, and map the port outside")


def unknown_port(context: LintContext) -> Iterator[Finding]:
    """Who is meant to reach the port can know it."""
    serving = context.spec.serving
    if serving.port == 0 and not _is_loopback(serving.host):
        message = f"serving.port is 0, another port at every start, while {serving.host} is for others to reach"
        yield Finding(("serving", "port"), message, "write a port")


def absent_template(context: LintContext) -> Iterator[Finding]:
    """The chat template is there."""
    name = context.spec.serving.chat_template
    if name and _file(context, name) is None:
        message = f"serving.chat_template is {name}, and there is no such file beside the spec"
        yield Finding(("serving", "chat_template"), message, "correct the path, or remove it for the model's template")


def logged_prompts(context: LintContext) -> Iterator[Finding]:
    """What users write stays out of the log."""
    if context.spec.serving.log == "prompts":
        message = "serving.log is prompts: whoever reads the log reads what users wrote"
        yield Finding(("serving", "log"), message, "write `requests`, or allow it here with the reason")


def _file(context: LintContext, name: str | None) -> Path | None:
    """The file that the spec calls `name`, if there is one."""
    try:
        return context.base / name if name and (context.base / name).is_file() else None
    except OSError:  # not even a name for a file
        return None


def _text(file: Path) -> bytes:
    """What `file` holds; something if it cannot be read, as secrets need not be readable to whoever lints."""
    try:
        return file.read_bytes()
    except OSError:
        return b"?"


def _parts(host: str) -> tuple[str, str]:
    """The address or name in `host`, and the port if one follows."""
    bare = host.rpartition("://")[2].rstrip("/")
    name, colon, port = bare.partition(":")
    return (name, port) if colon and port.isdigit() else (bare, "")


def _is_loopback(host: str) -> bool:
    name, _ = _parts(host)
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


SERVING_RULES = (
    Rule("DP701", "open-to-network", Severity.WARNING, open_to_network),
    Rule("DP702", "host-form", Severity.ERROR, host_form),
    Rule("DP703", "empty-key-file", Severity.ERROR, empty_key_file),
    Rule("DP704", "readable-key-file", Severity.WARNING, readable_key_file),
    Rule("DP705", "small-body", Severity.WARNING, small_body),
    Rule("DP706", "long-drain", Severity.WARNING, long_drain),
    Rule("DP707", "low-port", Severity.WARNING, low_port),
    Rule("DP708", "unknown-port", Severity.WARNING, unknown_port),
    Rule("DP709", "absent-template", Severity.ERROR, absent_template),
    Rule("DP710", "key-file-form", Severity.ERROR, key_file_form),
    Rule("DP711", "logged-prompts", Severity.WARNING, logged_prompts),
)
