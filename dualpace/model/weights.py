"""Safetensors -> the engine's weight table; a checkpoint tensor that nothing consumes fails loading by its name."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from dualpace.model.error import ModelError
from dualpace.model.names import EMBED, HEAD, PREFIXES, Part, Prefix, sources, stacked_shape
from dualpace.model.upload import Upload
from dualpace.plan.plan import Plan

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

# Called with the bytes done and the bytes in all.
Progress = Callable[[int, int], None]
# Copies the second tensor into the first.
_Copy = Callable[[torch.Tensor, torch.Tensor], object]

_FLOATS = {"BF16", "F16", "F32", "F64"}
# Tensors that no text decoder reads: rotary frequencies, which the plan has, and a multimodal model's vision side.
_IGNORED_ENDINGS = (".rotary_emb.inv_freq",)
_IGNORED_VISION = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")
_NAMES_SHOWN = 6


class WeightError(ModelError):
    """Weights that cannot be served; the message names the file or tensors and the remedy."""


class _Tensor(NamedTuple):
    """A tensor of the checkpoint as its file's header declares it."""

    file: Path
    handle: Any
    shape: tuple[int, ...]
    dtype: str


def load(plan: Plan, folder: Path, progress: Progress | None = None, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Read the weight table of `plan` from the safetensors in `folder` to `device`, in the plan's dtype.

    Linear weights are [out, in]; q, k, v and gate, up are stacked on dim 0; a tied `head` is `embed` itself. Names,
    shapes and types are checked from the headers before any data is read. Raises WeightError.
    """
    model = plan.model
    table = sources(model)
    copy: _Copy = torch.Tensor.copy_ if device == "cpu" else Upload().copy
    with _open(folder) as checkpoint:
        prefix = _prefix(checkpoint)
        _check(checkpoint, prefix, table, folder)
        if model.tie_embeddings:
            _check_tied(checkpoint, prefix)
        weights = {}
        dtype = DTYPES[model.dtype]
        total = sum(prod(stacked_shape(parts)) for parts in table.values()) * dtype.itemsize
        done = 0
        for name, parts in table.items():
            weights[name] = torch.empty(stacked_shape(parts), dtype=dtype, device=device)
            _fill(checkpoint, prefix, parts, weights[name], copy)
            done += weights[name].nbytes
            if progress:
                progress(done, total)
    if model.tie_embeddings:
        weights["head"] = weights["embed"]
    return weights


@contextmanager
def _open(folder: Path) -> Iterator[dict[str, _Tensor]]:
    """All tensors of the checkpoint by name, data still on disk."""
    with ExitStack() as files:
        checkpoint: dict[str, _Tensor] = {}
        for file, expected in _files(folder).items():
            if not file.is_file():
                raise WeightError(f"{file} is named by {INDEX} but is not there: download the whole checkpoint again")
            try:
                handle = files.enter_context(safe_open(file, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise WeightError(f"{file} is truncated or no safetensors file ({error}): download it again") from error
            names = set(handle.keys())
            if expected is not None and names != expected:
                raise WeightError(
                    f"{file} and {INDEX} disagree about {listed(names ^ expected)}: they are of different downloads, "
                    "download the whole checkpoint again"
                )
            for name in names:
                view = handle.get_slice(name)
                checkpoint[name] = _Tensor(file, handle, tuple(view.get_shape()), view.get_dtype())
        yield checkpoint


def _files(folder: Path) -> dict[Path, set[str] | None]:
    """The checkpoint's files, and the tensors that its index, if it has one, says are in each."""
    index = folder / INDEX
    if index.is_file():
        try:
            weight_map: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        except (ValueError, KeyError, TypeError) as error:
            raise WeightError(f"{index} is not a safetensors index: download it again") from error
        files: dict[Path, set[str] | None] = {folder / file: set() for file in sorted(set(weight_map.values()))}
        for name, file in weight_map.items():
            named = files[folder / file]
            assert named is not None
            named.add(name)
        return files
    candidates = sorted(folder.glob("*.safetensors"))
    if folder / SINGLE in candidates:
        candidates = [folder / SINGLE]
    if not candidates:
        raise WeightError(f"{folder} has no safetensors: model.path must name the folder of a downloaded checkpoint")
    if len(candidates) > 1:
        raise WeightError(f"{folder} has {len(candidates)} safetensors files but no {INDEX}: download it too")
    return {candidates[0]: None}


def _prefix(checkpoint: dict[str, _Tensor]) -> Prefix:
    for prefix in PREFIXES:
        if prefix.actual(EMBED) in checkpoint:
            return prefix
    return PREFIXES[0]


def _check(checkpoint: dict[str, _Tensor], prefix: Prefix, table: dict[str, tuple[Part, ...]], folder: Path) -> None:
    """Raise WeightError with everything at once that is missing, left over, misshapen or not a float."""
    wanted = {prefix.actual(part.name): part for parts in table.values() for part in parts}
    found = {name: checkpoint[name] for name in wanted.keys() & checkpoint.keys()}
    missing = wanted.keys() - checkpoint.keys()
    unread = {name for name in checkpoint.keys() - wanted.keys() if not _ignorable(name, prefix)}
    if HEAD not in {part.name for part in wanted.values()}:
        unread.discard(prefix.actual(HEAD))
    misshapen = [
        f"{name} is {list(tensor.shape)} where the plan has {list(wanted[name].shape)}"
        for name, tensor in sorted(found.items())
        if tensor.shape != wanted[name].shape
    ]
    quantised = sorted(f"{name} is {tensor.dtype}" for name, tensor in found.items() if tensor.dtype not in _FLOATS)
    problems = []
    if missing:
        problems.append(f"lacks {listed(missing)}")
    if unread:
        problems.append(f"has {listed(unread)}, which nothing in the plan reads")
    if misshapen:
        problems.append(f"does not fit: {listed(misshapen)}")
    if quantised:
        problems.append(f"is quantised: {listed(quantised)}, use the bf16 checkpoint or a .gguf")
    if problems:
        raise WeightError(f"{folder} {'; '.join(problems)}: check that model.path and the shape name the same model")


def _ignorable(name: str, prefix: Prefix) -> bool:
    multimodal = "language_model" in prefix.body
    return name.endswith(_IGNORED_ENDINGS) or (multimodal and name.startswith(_IGNORED_VISION))


def _check_tied(checkpoint: dict[str, _Tensor], prefix: Prefix) -> None:
    """A tied checkpoint may still carry its head; it must then be the embedding, bit for bit."""
    head = checkpoint.get(prefix.actual(HEAD))
    embed = checkpoint[prefix.actual(EMBED)]
    if head is None:
        return
    same = head.shape == embed.shape and torch.equal(
        _read(head, prefix.actual(HEAD)), _read(embed, prefix.actual(EMBED))
    )
    if not same:
        raise WeightError(
            f"{head.file} has an {prefix.actual(HEAD)} that differs from the embedding, but the plan ties them: "
            "set tie_embeddings to false"
        )


def _fill(
    checkpoint: dict[str, _Tensor], prefix: Prefix, parts: tuple[Part, ...], stacked: torch.Tensor, copy: _Copy
) -> None:
    begin = 0
    for part in parts:
        name = prefix.actual(part.name)
        rows = stacked[begin : begin + part.shape[0]]
        copy(rows, _read(checkpoint[name], name))
        begin += part.shape[0]
        if stacked.dtype == torch.float16 and checkpoint[name].dtype != "F16" and not rows.isfinite().all():
            raise WeightError(f"{name} has values beyond fp16's range: set model.dtype to bf16")


def _read(tensor: _Tensor, name: str) -> torch.Tensor:
    data = tensor.handle.get_tensor(name)
    assert isinstance(data, torch.Tensor)
    return data


def listed(names: Iterable[str]) -> str:
    """The first few of `names` for a message, in order."""
    ordered = sorted(names)
    more = f" and {len(ordered) - _NAMES_SHOWN} more" if len(ordered) > _NAMES_SHOWN else ""
    return ", ".join(ordered[:_NAMES_SHOWN]) + more
