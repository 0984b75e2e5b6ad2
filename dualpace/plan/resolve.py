"""Spec -> Plan. Pure: no GPU, CUDA, weights or network, and the same plan on every machine.

Reads no more than a checkpoint's config.json or GGUF header; `hub_cache` is where snapshots of the model hub lie.
"""

import difflib
import os
from pathlib import Path
from typing import Literal, NamedTuple

from dualpace.plan import cooperation, flashinfer, prefill, recall
from dualpace.plan.abi import ring_bytes
from dualpace.plan.calibration import resolve_policy
from dualpace.plan.capacity import Capacity, resolve_capacity
from dualpace.plan.checkpoint import Checkpoint, CheckpointError, read_checkpoint
from dualpace.plan.error import PlanError
from dualpace.plan.forecast import forecast
from dualpace.plan.paging import KvLayout
from dualpace.plan.plan import (
    Attention,
    AttentionPolicy,
    CooperativePace,
    Floor,
    Model,
    Nic,
    Offload,
    Plan,
    RecallPace,
    Rings,
    Schedule,
    Serving,
    Target,
    Weights,
)
from dualpace.plan.roofline import floor, kv_token_bytes, parameters
from dualpace.plan.shape import check_host, complete, differences, resolve_model
from dualpace.plan.targets import CPU, GPUS
from dualpace.spec.models import AttentionSection, ModelSection, NicSection, OffloadSection, RandomWeights, Spec

__all__ = ["PlanError", "resolve"]

PAGE_SIZE = 16
# A multiple of every page size; long enough that merging partials costs little beside reading the KV.
SPLIT_TOKENS = 256
# With two kernels of attention every layer has an idle launch of the one that is not taken.
WORTHWHILE_GAIN = 0.02
FLOOR_ROWS = (1, 8, 32, 64, 128, 256, 512)
FLOOR_CONTEXTS = (1024, 8192, 32768)
MIN_TOKEN_SLOTS = 4096
MIN_ARENA_WORDS = 65536


def resolve(spec: Spec, base: Path, hub_cache: Path | None = None) -> Plan:
    """The plan of `spec`, whose paths are relative to `base`. Raises PlanError."""
    target = _target(spec)
    source = _source(spec.model, base, hub_cache)
    model = _model(spec, source)
    policy = _policy(spec, base, model, target)
    attention = _attention(spec.attention, model, target, policy)
    if policy and attention.flashinfer == "none":
        policy = policy.model_copy(update={"flashinfer": None})
    capacity = resolve_capacity(spec, model, attention, target, _offload(spec.offload, attention.page_size))
    floors = _floors(model, target, attention, policy, capacity)
    return Plan(
        name=spec.name,
        model=model,
        weights=source.weights,
        attention=attention,
        pages=capacity.pages,
        schedule=capacity.schedule,
        rings=_rings(spec.nic, capacity.schedule),
        nic=_nic(spec.nic, target, base),
        offload=capacity.offload,
        target=target,
        memory=capacity.memory,
        serving=_serving(spec, base),
        parameters=parameters(model),
        weight_bytes=parameters(model) * model.element_bytes,
        kv_bytes_per_token=model.layers * kv_token_bytes(model),
        floors=floors,
        forecast=forecast(model, target, attention, policy, capacity.schedule.prefill_chunk, floors),
        policy=policy,
        recall=_recall(model, target, attention, capacity) if capacity.offload.mode == "recall" else (),
        cooperation=_cooperation(model, target, attention, capacity) if capacity.offload.mode == "cooperative" else (),
    )


def _target(spec: Spec) -> Target:
    section = spec.target
    if section.cpu == (section.gpu is not None):
        raise PlanError(("target",), "exactly one of `gpu` and `cpu: true` names the hardware", "remove or add one")
    hardware = CPU if section.gpu is None else GPUS.get(section.gpu.lower())
    if hardware is None:
        close = difflib.get_close_matches(str(section.gpu).lower(), GPUS, n=1)
        raise PlanError(
            ("target", "gpu"),
            f"{section.gpu!r} is not a known GPU: {', '.join(GPUS)} are",
            f"did you mean {close[0]}?" if close else "without a GPU, give `cpu: true`",
        )
    if hardware.kind == "cpu" and section.count > 1:
        raise PlanError(("target", "count"), f"{section.count} is for cards of one host; a CPU target has 1")
    return Target(**hardware._asdict(), count=section.count)


class _Source(NamedTuple):
    """Where the model comes from: its weights, and its checkpoint where that can be read."""

    weights: Weights
    checkpoint: Checkpoint | None
    field: Literal["hub", "path"]


def _source(section: ModelSection, base: Path, hub_cache: Path | None) -> _Source:
    if section.hub and section.path:
        raise PlanError(("model", "path"), "`hub` and `path` both name the model", "remove one")
    field: Literal["hub", "path"] = "hub" if section.hub else "path"
    folder = _snapshot(section, hub_cache) if section.hub else _absolute(base, section.path) if section.path else None
    checkpoint = None
    if folder is not None and folder.exists():
        try:
            checkpoint = read_checkpoint(folder)
        except CheckpointError as error:
            raise PlanError(("model", field), str(error)) from error
    elif section.shape is None:
        where = f"no checkpoint at {folder}" if folder else f"no local snapshot of {section.hub}" if section.hub else ""
        raise PlanError(
            ("model", field) if where else ("model",),
            where or "nothing names the model",
            "give model.shape, or put the checkpoint there" if where else "give `path`, `hub` or `shape`",
        )
    return _Source(_weights(section, folder), checkpoint, field)


def _absolute(base: Path, path: str) -> Path:
    # Not Path.resolve: a link that names the checkpoint keeps its name.
    return Path(os.path.normpath(base.absolute() / path))


def _snapshot(section: ModelSection, hub_cache: Path | None) -> Path | None:
    if section.revision is None:
        raise PlanError(("model", "hub"), f"{section.hub} needs `revision`", "give the commit, so that a build repeats")
    if hub_cache is None:
        return None
    return hub_cache / f"models--{str(section.hub).replace('/', '--')}" / "snapshots" / section.revision


def _weights(section: ModelSection, folder: Path | None) -> Weights:
    if isinstance(section.weights, RandomWeights):
        tokenizer = str(folder) if folder and folder.exists() else ""
        return Weights(kind="random", path=tokenizer, seed=section.weights.random)
    if not section.hub and not section.path:
        raise PlanError(
            ("model", "weights"), "a `shape` alone has no weights", "give `path` or `hub`, or `weights: {random: 0}`"
        )
    kind: Literal["gguf", "safetensors"] = "gguf" if folder and folder.suffix == ".gguf" else "safetensors"
    hub = f"{section.hub}@{section.revision}" if section.hub else ""
    return Weights(kind=kind, path=str(folder) if folder else "", hub=hub)


def _model(spec: Spec, source: _Source) -> Model:
    section, checkpoint = spec.model, source.checkpoint
    given = complete(section.shape) if section.shape else None
    found = complete(checkpoint.shape) if checkpoint else None
    if given and found:
        for field, ours, theirs in differences(given, found):
            raise PlanError(
                ("model", "shape", field),
                f"{ours} differs from {theirs}, which the checkpoint says",
                "correct it, or leave the shape out",
            )
    shape = found or given
    assert shape is not None  # _source has seen to it
    if spec.target.cpu:
        check_host(shape)
    made_for = (checkpoint and checkpoint.dtype) or "bf16"
    model = resolve_model(shape, made_for if section.dtype == "auto" else section.dtype)
    if section.max_context != "auto" and section.max_context > model.context:
        raise PlanError(
            ("model", "max_context"),
            f"{section.max_context} exceeds the {model.context} tokens that the model supports",
            f"lower it to {model.context}",
        )
    if model.kv_heads % spec.target.count:
        raise PlanError(
            ("target", "count"), f"{spec.target.count} cards cannot share {model.kv_heads} KV heads evenly", "change it"
        )
    return model


def _attention(section: AttentionSection, model: Model, target: Target, policy: AttentionPolicy | None) -> Attention:
    if section.gqa_ratio not in ("auto", model.gqa_ratio):
        raise PlanError(
            ("attention", "gqa_ratio"),
            f"{section.gqa_ratio} is not the model's {model.gqa_ratio}, {model.heads} / {model.kv_heads} heads",
            f"make it {model.gqa_ratio} or `auto`",
        )
    if section.route == "flashinfer" and target.kind == "cpu":
        raise PlanError(("attention", "route"), "flashinfer is for GPU targets", "make it `auto`")
    page_size = PAGE_SIZE if section.page_size == "auto" else section.page_size
    gains = section.route == "auto" and policy is not None and policy.flashinfer_gain > WORTHWHILE_GAIN
    return Attention(
        page_size=page_size,
        route=section.route,
        split_tokens=SPLIT_TOKENS,
        flashinfer=flashinfer.kernel(model) if section.route == "flashinfer" or gains else "none",
        prefill=prefill.kernel(model.dtype, model.head_dim, target.sm),
    )


def _policy(spec: Spec, base: Path, model: Model, target: Target) -> AttentionPolicy | None:
    file = spec.target.calibration
    if target.kind == "cpu":
        if file:
            raise PlanError(("target", "calibration"), "only a GPU has attention routes to choose from", "leave it out")
        return None
    return resolve_policy(_absolute(base, file) if file else None, model, target)


def _offload(section: OffloadSection, page_size: int) -> Offload:
    if section.mode == "off":
        return Offload(mode="off", host_budget=0, sparse_blocks=0)
    if section.host_budget is None:
        raise PlanError(("offload", "host_budget"), f"mode {section.mode} needs host memory", "give it, like 64GiB")
    sparse = 0 if section.selection == "exact" else section.selection.blocks
    sinks, recent = recall.sinks(page_size), recall.recent(page_size)
    if sparse and sparse <= sinks + recent:
        raise PlanError(
            ("offload", "selection", "blocks"),
            f"{sparse} blocks leave none to choose: the first {sinks} and the last {recent} of a row are always taken",
            f"raise it to {2 * (sinks + recent)} or more",
        )
    return Offload(
        mode=section.mode,
        host_budget=section.host_budget,
        sparse_blocks=sparse,
        sinks=sinks,
        recent=recent,
        cpu_workers=0 if section.cpu_workers == "auto" else section.cpu_workers,
    )


def _recall(model: Model, target: Target, attention: Attention, capacity: Capacity) -> tuple[RecallPace, ...]:
    layout = KvLayout(model, attention.page_size, capacity.schedule.prefill_chunk, target.count)
    return tuple(recall.paces(model, target, layout, capacity.offload, capacity.schedule))


def _cooperation(model: Model, target: Target, attention: Attention, capacity: Capacity) -> tuple[CooperativePace, ...]:
    alone = _recall(model, target, attention, capacity)
    return tuple(cooperation.paces(model, target, capacity.offload, attention.split_tokens, alone))


def _rings(section: NicSection, schedule: Schedule) -> Rings:
    if section.slots & (section.slots - 1):
        raise PlanError(
            ("nic", "slots"),
            f"{section.slots} is not a power of two",
            f"use {1 << (section.slots.bit_length() - 1)} or {1 << section.slots.bit_length()}",
        )
    counts = Rings(
        transport=section.transport,
        rings=section.rings,
        request_slots=section.slots,
        token_slots=_power_of_two(max(4 * schedule.max_batch, MIN_TOKEN_SLOTS)),
        arena_words=_power_of_two(max(4 * schedule.max_context, MIN_ARENA_WORDS)),
        bytes=0,
    )
    return counts.model_copy(update={"bytes": ring_bytes(counts)})


def _nic(section: NicSection, target: Target, base: Path) -> Nic | None:
    if section.transport == "shm":
        return None
    if section.device is None:
        raise PlanError(("nic", "device"), "rdma needs a device", "name it, like mlx5_0")
    if section.gate is None:
        raise PlanError(("nic", "gate"), "rdma needs a gate for frontends", "give its tls and key_file")
    return Nic(
        device=section.device,
        port=section.port,
        gid_index=section.gid_index,
        memory="gpu" if section.memory == "auto" and target.kind == "cuda" else "host",
        gate_host=section.gate.host,
        gate_port=section.gate.port,
        tls_certificate=str(_absolute(base, section.gate.tls.certificate)),
        tls_key=str(_absolute(base, section.gate.tls.key)),
        key_file=str(_absolute(base, section.gate.key_file)),
    )


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _serving(spec: Spec, base: Path) -> Serving:
    section = spec.serving
    template = _absolute(base, section.chat_template) if section.chat_template else None
    if template is not None and not template.is_file():
        raise PlanError(("serving", "chat_template"), f"there is no file {template}", "correct the path")
    return Serving(
        host=section.host,
        port=section.port,
        model_name=section.model_name or spec.name,
        api_key_file=str(_absolute(base, section.api_key_file)) if section.api_key_file else "",
        max_body=section.max_body,
        drain=section.drain,
        log=section.log,
        tls_certificate=str(_absolute(base, section.tls.certificate)) if section.tls else "",
        tls_key=str(_absolute(base, section.tls.key)) if section.tls else "",
        chat_template=str(template or ""),
    )


def _floors(
    model: Model, target: Target, attention: Attention, policy: AttentionPolicy | None, capacity: Capacity
) -> tuple[Floor, ...]:
    """The floors of what the KV pages can hold, short and long, from one row to a full batch."""
    schedule = capacity.schedule
    rows = (*(n for n in FLOOR_ROWS if n < schedule.max_batch), schedule.max_batch)
    contexts = (*(n for n in FLOOR_CONTEXTS if n < schedule.max_context), schedule.max_context)
    return tuple(
        floor(model, target, attention, policy, schedule.prefill_chunk, n, context)
        for context in contexts
        for n in rows
        if _holds(model, attention, capacity, n, context)
    )


def _holds(model: Model, attention: Attention, capacity: Capacity, rows: int, context: int) -> bool:
    return all(
        rows * -(-min(context, group.window or context) // attention.page_size) <= pool.pages
        for group, pool in zip(model.groups, capacity.pages, strict=True)
    )
