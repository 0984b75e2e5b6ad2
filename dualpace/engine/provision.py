"""What an engine does before it serves: check its bundle, read or make the weights, say how far it is."""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from dualpace.model.random import random_weights
from dualpace.model.tokenizer import Tokenizer
from dualpace.model.weights import load
from dualpace.plan.abi import layout_hash
from dualpace.plan.manifest import TOKENIZER, BundleError, Manifest, check_weights

_REPORT_SECONDS = 1.0

Say = Callable[[str], None]


class StoppedError(Exception):
    """Told to stop while the model was loading."""


def check_bundle(bundle: Path, manifest: Manifest) -> None:
    """Refuse a bundle of another layout than this version's, or without its weights. Raises BundleError."""
    layout = layout_hash(manifest.plan)
    if manifest.layout != layout:
        raise BundleError(
            f"{bundle} has layout {manifest.layout}, this version of dualpace makes {layout}: build the spec again"
        )
    if manifest.weights is not None:
        check_weights(manifest.weights)


def vocabulary(bundle: Path, manifest: Manifest) -> int:
    """Ids that a text can hold; the model's vocabulary may be padded beyond them."""
    ids = manifest.plan.model.vocab
    return min(ids, Tokenizer(bundle).id_bound) if (bundle / TOKENIZER).is_file() else ids


def weights(manifest: Manifest, device: str, say: Say, stopped: Callable[[], bool]) -> dict[str, torch.Tensor]:
    """The weight table on `device`. Raises ModelError, and StoppedError once `stopped()`."""
    what = "making weights" if manifest.weights is None else "loading weights"
    say(what)
    report = _reporter(what, say, stopped)
    if manifest.weights is None:
        return random_weights(manifest.plan, report, device)
    return load(manifest.plan, Path(manifest.weights.folder), report, device)


def _reporter(what: str, say: Say, stopped: Callable[[], bool]) -> Callable[[int, int], None]:
    """Progress in bytes, at most once a second. Called after each tensor, it is also where loading ends early."""
    said = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal said
        if stopped():
            raise StoppedError
        if time.monotonic() - said >= _REPORT_SECONDS:
            said = time.monotonic()
            say(f"{what}: {done >> 20} of {total >> 20} MiB")

    return report
