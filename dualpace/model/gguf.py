"""GGUF -> safetensors with hub tensor names, once, in the store.

What GGUF does to a checkpoint is undone: quantisation, the pairwise order of the rows of q and k in Llama and Mistral
(the format's rotary embedding turns neighbours, ours turns halves), and norms stored with the family's offset added.
"""

import json
import os
import struct
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quant_shape_to_byte_shape

from dualpace.files import new_folder
from dualpace.model.names import PREFIXES, Part, sources, stacked_shape
from dualpace.model.weights import DTYPES, SINGLE, Progress, WeightError, listed
from dualpace.plan.gguf_header import GgufError, GgufHeader, TensorInfo, read_floats, read_header
from dualpace.plan.plan import Model, Rope
from dualpace.plan.rope import inverse_frequencies

# Part of the converted folder's name: raised whenever the same file would convert to other bytes.
CONVERTER = 1

# GGUF name -> engine tensor, and which of its parts the GGUF tensor holds.
_GLOBAL = {"token_embd.weight": "embed", "output_norm.weight": "final_norm", "output.weight": "head"}
_ALL = slice(None)
_LAYER = {
    "attn_norm.weight": ("attn_norm", _ALL),
    "attn_q.weight": ("qkv", slice(0, 1)),
    "attn_k.weight": ("qkv", slice(1, 2)),
    "attn_v.weight": ("qkv", slice(2, 3)),
    "attn_qkv.weight": ("qkv", _ALL),
    "attn_q.bias": ("qkv_bias", slice(0, 1)),
    "attn_k.bias": ("qkv_bias", slice(1, 2)),
    "attn_v.bias": ("qkv_bias", slice(2, 3)),
    "attn_qkv.bias": ("qkv_bias", _ALL),
    "attn_q_norm.weight": ("q_norm", _ALL),
    "attn_k_norm.weight": ("k_norm", _ALL),
    "attn_output.weight": ("o", _ALL),
    "post_attention_norm.weight": ("post_attn_norm", _ALL),
    "ffn_norm.weight": ("mlp_norm", _ALL),
    "ffn_gate.weight": ("gate_up", slice(0, 1)),
    "ffn_up.weight": ("gate_up", slice(1, 2)),
    "ffn_down.weight": ("down", _ALL),
    "post_ffw_norm.weight": ("post_mlp_norm", _ALL),
}
_ROPE_DIVISORS = "rope_freqs.weight"
_PAIRED_ROWS = ("llama", "mistral")
_SAFETENSORS_DTYPES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}


def convert(path: Path, digest: str, model: Model, store: Path, progress: Progress | None = None) -> Path:
    """The folder under `store` with the weights of `path`, whose SHA-256 is `digest`, in `model`'s dtype.

    Converts them if the folder is not there yet, one tensor in memory at a time. Raises WeightError.
    """
    folder = store / "weights" / f"{digest}-{model.dtype}-v{CONVERTER}"
    if not folder.is_dir():
        try:
            header = read_header(path)
            held = _match(path, header, model)
        except GgufError as error:
            raise WeightError(f"{path}: {error}: download it again") from error
        parts = [part for parts in held.values() for part in parts]
        with new_folder(folder) as partial:
            tensors = _tensors(path, header, model, held)
            _write(partial / SINGLE, parts, tensors, _SAFETENSORS_DTYPES[model.dtype], progress)
    return folder


def _match(path: Path, header: GgufHeader, model: Model) -> dict[str, tuple[Part, ...]]:
    """GGUF tensor -> the hub tensors it holds. Raises WeightError unless both sides are used up and fit."""
    if header.metadata.get("split.count", 1) not in (0, 1):
        raise WeightError(f"{path} is one of {header.metadata['split.count']} files: merge them into one .gguf")
    table = sources(model)
    known = {name: table[tensor] for name, tensor in _GLOBAL.items() if tensor in table}
    for layer in range(model.layers):
        for suffix, (tensor, which) in _LAYER.items():
            if parts := table.get(f"layers.{layer}.{tensor}"):
                known[f"blk.{layer}.{suffix}"] = parts[which]
    held = {name: known[name] for name in header.tensors if name in known}
    if _ROPE_DIVISORS in header.tensors:
        _check_rope(path, header, model)
    unread = header.tensors.keys() - known.keys() - {_ROPE_DIVISORS}
    if unread:
        raise WeightError(f"{path} has {listed(unread)}, which nothing in the plan reads: check the model's shape")
    names = [part.name for parts in held.values() for part in parts]
    missing = {part.name for parts in table.values() for part in parts} - set(names)
    if missing or len(names) != len(set(names)):
        raise WeightError(f"{path} lacks {listed(missing) or 'no tensor but holds one twice'}: download it again")
    for name, parts in held.items():
        if header.tensors[name].shape != stacked_shape(parts):
            raise WeightError(
                f"{path}: {name} is {list(header.tensors[name].shape)} where the plan has "
                f"{list(stacked_shape(parts))}: check the model's shape"
            )
    return held


def _check_rope(path: Path, header: GgufHeader, model: Model) -> None:
    """The file's frequency divisors must be the plan's scaling of its full-attention layers."""
    rope = next((group.rope for group in model.groups if group.window == 0), model.groups[0].rope)
    plain = inverse_frequencies(Rope(theta=rope.theta), model.head_dim)
    scaled = inverse_frequencies(rope, model.head_dim)
    expected = [a / b for a, b in zip(plain, scaled, strict=True)]
    if not np.allclose(read_floats(path, header, _ROPE_DIVISORS), expected, rtol=1e-3):
        raise WeightError(
            f"{path}: {_ROPE_DIVISORS} is not the plan's {rope.scaling} rope scaling: correct rope_scaling"
        )


def _tensors(path: Path, header: GgufHeader, model: Model, held: dict[str, tuple[Part, ...]]) -> Iterator[torch.Tensor]:
    """The hub tensors of `held`, in its order."""
    # Copy on write: torch takes no read-only arrays.
    data = np.memmap(path, dtype=np.uint8, mode="c")
    for name, parts in held.items():
        values = _dequantise(path, name, header.tensors[name], data[header.data_start :])
        if name.endswith("norm.weight"):
            values = values - model.norm_offset
        for part, rows in zip(parts, np.split(values, np.cumsum([part.shape[0] for part in parts])[:-1]), strict=True):
            if model.family in _PAIRED_ROWS and part.name.endswith(("q_proj.weight", "k_proj.weight")):
                rows = rows.reshape(-1, model.head_dim // 2, 2, model.hidden).swapaxes(1, 2).reshape(part.shape)
            tensor = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.float32)).to(DTYPES[model.dtype])
            if model.dtype == "fp16" and not tensor.isfinite().all():
                raise WeightError(f"{path}: {name} has values beyond fp16's range: set model.dtype to bf16")
            yield tensor


def _dequantise(path: Path, name: str, info: TensorInfo, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    try:
        kind = GGMLQuantizationType(info.type)
        stored = quant_shape_to_byte_shape(info.shape, kind)
        raw = data[info.offset : info.offset + prod(stored)]
        if raw.size != prod(stored):
            raise WeightError(f"{path} is truncated: {name} ends past the file: download it again")
        values: npt.NDArray[np.float32] = dequantize(raw.reshape(stored), kind)
    except (ValueError, NotImplementedError) as error:
        raise WeightError(f"{path}: {name} cannot be dequantised ({error}): use another quantisation") from error
    return values


def _write(
    file: Path, parts: list[Part], tensors: Iterable[torch.Tensor], dtype: str, progress: Progress | None
) -> None:
    """Write `tensors`, which are `parts`, as one safetensors file without holding more than one of them."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    size = {"BF16": 2, "F16": 2, "F32": 4}[dtype]
    end = 0
    for part in parts:
        begin, end = end, end + prod(part.shape) * size
        header[PREFIXES[0].actual(part.name)] = {"dtype": dtype, "shape": part.shape, "data_offsets": (begin, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    done = 0
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            out.write(tensor.view(torch.uint8).numpy().data)
            done += tensor.nbytes
            if progress:
                progress(done, end)
        out.flush()
        os.fsync(out.fileno())
