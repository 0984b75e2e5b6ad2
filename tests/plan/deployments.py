"""Specs as users write them, for models whose numbers are public."""

import copy
from pathlib import Path

from dualpace.plan.plan import Plan
from dualpace.plan.resolve import resolve
from dualpace.spec.models import Spec

LLAMA_8B = {
    "family": "llama",
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "intermediate": 14336,
    "vocab": 128256,
    "context": 131072,
    "norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {"type": "llama3", "factor": 8.0, "original_context": 8192},
}
GEMMA_270M = {
    "family": "gemma3",
    "layers": 18,
    "hidden": 640,
    "heads": 4,
    "kv_heads": 1,
    "head_dim": 256,
    "intermediate": 2048,
    "vocab": 262144,
    "context": 32768,
    "sliding_window": 512,
}
MISTRAL_7B = {
    "family": "mistral",
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "intermediate": 14336,
    "vocab": 32000,
    "context": 32768,
    "norm_eps": 1e-5,
    "sliding_window": 4096,
}


def spec(shape=LLAMA_8B, gpu="h200", **fields) -> Spec:
    """A spec with random weights on `gpu`, or the CPU if None; `fields` are set by dotted path, `__` for the dot."""
    values = {
        "name": "deployment",
        "model": {"shape": copy.deepcopy(shape), "weights": {"random": 0}},
        "target": {"gpu": gpu} if gpu else {"cpu": True},
    }
    for path, value in fields.items():
        *sections, key = path.split("__")
        section = values
        for name in sections:
            section = section.setdefault(name, {})
        section[key] = value
    return Spec.model_validate(values)


def plan(shape=LLAMA_8B, gpu="h200", base=Path(), hub_cache=None, **fields) -> Plan:
    return resolve(spec(shape, gpu, **fields), base, hub_cache)
