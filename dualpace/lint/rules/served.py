"""What the spec language and the planner understand and the engines do not serve yet."""

from collections.abc import Iterator

from dualpace.diagnostic import Severity
from dualpace.lint.rule import Finding, LintContext, Rule


def not_served(context: LintContext) -> Iterator[Finding]:
    """Valid, planned, and refused by name by build and serve."""
    spec = context.spec
    recalls_on_cpu = spec.target.cpu and spec.offload.mode == "recall"
    fields = {
        ("offload", "mode"): (spec.offload.mode, spec.offload.mode if recalls_on_cpu else "off"),
        ("target", "count"): (spec.target.count, 1),
    }
    for path, (value, served) in fields.items():
        if value != served:
            message = f"{'.'.join(path)} {value} is planned, but build and serve refuse it in this version"
            yield Finding(path, message, f"write {served} to build and serve this spec today")


SERVED_RULES = (Rule("DP802", "not-served-yet", Severity.NOTE, not_served),)
