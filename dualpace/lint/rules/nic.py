"""The way in: rings, shared memory and RDMA."""

import re
from collections.abc import Iterator

from dualpace.diagnostic import Severity
from dualpace.lint.rule import Finding, LintContext, Rule
from dualpace.plan.quantity import size_text

CONTAINER_SHM = 64 * 2**20


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


def gate(context: LintContext) -> Iterator[Finding]:
    """With RDMA, frontends ask at a gate to be let in."""
    nic = context.spec.nic
    if nic.transport == "rdma" and nic.gate is None:
        help_ = "add `gate: {tls: {certificate: FILE, key: FILE}, key_file: FILE}`"
        yield Finding(
            ("nic", "transport"), "nic.transport is rdma, but nic.gate is absent: no frontend could come in", help_
        )


def ignored(context: LintContext) -> Iterator[Finding]:
    """Shared memory has no device and no gate."""
    nic = context.spec.nic
    if nic.transport == "shm":
        for name in ("device", "port", "gid_index", "memory", "gate"):
            if name in nic.model_fields_set:
                message = f"nic.{name} has no effect with transport shm"
                yield Finding(("nic", name), message, "remove it, or set `transport: rdma`", removable=True)


def device_form(context: LintContext) -> Iterator[Finding]:
    """The device is named as the verbs library names it."""
    name = context.spec.nic.device
    if name is None or context.spec.nic.transport == "shm":
        return
    bare, colon, port = name.partition(":")
    if colon:
        help_ = f"write `device: {bare}`" + (f" and `port: {port}`" if port.isdigit() else "")
        yield Finding(("nic", "device"), f"nic.device is {name}, a device and a port in one", help_)
    elif not re.fullmatch(r"[\w.-]+", name):
        what = "a path" if "/" in name else "which no device is called"
        help_ = "write a name that `ibv_devices` lists, such as mlx5_0"
        yield Finding(("nic", "device"), f"nic.device is {name}, {what}", help_)


def few_slots(context: LintContext) -> Iterator[Finding]:
    """A full batch can be under way in the request rings at once."""
    plan = context.plan
    if plan and plan.rings.rings * plan.rings.request_slots < plan.schedule.max_batch:
        slots = plan.rings.rings * plan.rings.request_slots
        message = f"nic.slots makes room for {slots} requests, below max_batch {plan.schedule.max_batch}"
        enough = 1 << (-(-plan.schedule.max_batch // plan.rings.rings) - 1).bit_length()
        yield Finding(("nic", "slots"), message, f"raise it to {enough}")


def shm_size(context: LintContext) -> Iterator[Finding]:
    """The rings fit the shared memory that a container has by default."""
    plan = context.plan
    if plan and plan.rings.transport == "shm" and plan.rings.bytes > CONTAINER_SHM:
        need = -(-plan.rings.bytes // CONTAINER_SHM) * CONTAINER_SHM // 2**20
        message = (
            f"nic.rings of {plan.rings.rings} take more than the {size_text(CONTAINER_SHM)} of shared memory that a "
            "container has by default"
        )
        help_ = f"start the container with --shm-size={need}m and allow this here, or lower nic.rings"
        yield Finding(("nic", "rings"), message, help_)


NIC_RULES = (
    Rule("DP401", "slots-power-of-two", Severity.ERROR, slots),
    Rule("DP402", "rdma-device", Severity.ERROR, device),
    Rule("DP403", "rdma-field-ignored", Severity.WARNING, ignored),
    Rule("DP404", "device-form", Severity.ERROR, device_form),
    Rule("DP405", "few-slots", Severity.WARNING, few_slots),
    Rule("DP406", "shm-size", Severity.WARNING, shm_size),
    Rule("DP407", "rdma-gate", Severity.ERROR, gate),
)
