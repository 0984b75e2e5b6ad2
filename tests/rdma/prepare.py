"""Fills the folder of `prepared`."""

import shutil
from pathlib import Path

import torch
from transformers.models.llama import LlamaForCausalLM

from benchmarks import replay
from tests.appliance.bundles import tokenizer
from tests.e2e.tiny import build_tiny
from tests.rdma.prepared import (
    BUNDLE,
    CERTIFICATE,
    CERTIFICATE_KEY,
    CONTINUATION,
    GATE_PORT,
    KEY,
    PROMPT,
    REPLAY,
    TOKENS,
    issue,
)
from tests.scheduler.engines import compile_host
from tests.scheduler.plans import ROOMY, TIGHT


def prepare(folder: Path, store: Path) -> None:
    """Compile and build all of it, through `store`, which may hold libraries already."""
    issue(folder)
    for plan in (ROOMY, TIGHT):
        (folder / plan.name).mkdir()
        compile_host(plan, folder / plan.name)
    gate = {
        "host": "127.0.0.1",
        "port": GATE_PORT,
        "tls": {"certificate": str(folder / CERTIFICATE), "key": str(folder / CERTIFICATE_KEY)},
        "key_file": str(folder / KEY),
    }
    nic = {"transport": "rdma", "device": "rxe0", "gid_index": 1, "gate": gate}
    bundle = build_tiny(folder, store, nic)
    assert bundle == folder / BUNDLE
    shutil.copy(replay.compiled(bundle, store), folder / REPLAY)
    (folder / CONTINUATION).write_text(_continuation(folder / "checkpoint"))


@torch.inference_mode()
def _continuation(checkpoint: Path) -> str:
    """The text with which the reference goes on after PROMPT, greedily."""
    model, made = LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32), tokenizer()
    ids = list(PROMPT)
    for _ in range(TOKENS):
        logits = model(torch.tensor([ids])).logits[0, -1, : made.get_vocab_size()]
        ids.append(int(logits.argmax()))
    return str(made.decode(ids[len(PROMPT) :]))
