"""The way in: rings, shared memory and RDMA."""

from collections.abc import Iterator

from dualpace.diagnostic import Severity
from dualpace.lint.rule import REMOVE, Finding, LintContext, Rule


def slots(context: LintContext) -> Iterator[Finding]:
    """Ring positions wrap by a mask."""
    count = context.spec.nic.slots
    if count & (count - 1):
        below = 1 << count.bit_length() - 1
        message = f"nic.slots is {count}, not a power of two"
        yield Finding(("nic", "slots"), message, f"write {below} or {min(2 * below, 65536)}")


def device(context: LintContext) -> Iterator[Finding]:
    """RDMA goes through a named device."""
    nic = context.spec.nic
    if nic.transport == "rdma" and nic.device is None:
        help_ = "add `device:` with a name that `ibv_devices` lists, such as mlx5_0"
        yield Finding(("nic", "transport"), "nic.transport is rdma, but nic.device is absent", help_)


def ignored(context: LintContext) -> Iterator[Finding]:
    """Shared memory has no device."""
    nic = context.spec.nic
    if nic.transport == "shm":
        for name in ("device", "port", "gid_index"):
            if name in nic.model_fields_set:
                message = f"nic.{name} has no effect with transport shm"
                yield Finding(("nic", name), message, "remove it, or set `transport: rdma`", REMOVE)


NIC_RULES = (
    Rule("DP401", "slots-power-of-two", Severity.ERROR, slots),
    Rule("DP402", "rdma-device", Severity.ERROR, device),
    Rule("DP403", "rdma-field-ignored", Severity.WARNING, ignored),
)
