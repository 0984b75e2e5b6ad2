"""The rules, one topic a file. Ids are permanent and never used twice."""

from dualpace.lint.rule import Rule
from dualpace.lint.rules.attention import ATTENTION_RULES
from dualpace.lint.rules.memory import MEMORY_RULES
from dualpace.lint.rules.model import MODEL_RULES
from dualpace.lint.rules.nic import NIC_RULES
from dualpace.lint.rules.offload import OFFLOAD_RULES
from dualpace.lint.rules.scheduler import SCHEDULER_RULES
from dualpace.lint.rules.served import SERVED_RULES
from dualpace.lint.rules.serving import SERVING_RULES
from dualpace.lint.rules.target import TARGET_RULES

RULES: tuple[Rule, ...] = (
    *MODEL_RULES,
    *ATTENTION_RULES,
    *SCHEDULER_RULES,
    *NIC_RULES,
    *OFFLOAD_RULES,
    *TARGET_RULES,
    *SERVING_RULES,
    *SERVED_RULES,
    *MEMORY_RULES,
)
