"""The table of shared structs as C++ and as ctypes.

Both come from the same places: padding is explicit on both sides, so neither compiler decides anything, and the C++
asserts each offset and size. Its hash, which covers the plan's compiled constants too, is in every library and in the
ring memory; a reader refuses another.
"""

import ctypes
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from struct import Struct as Reader
from typing import Any

from dualpace.plan.plan import Plan, Rings
from dualpace.plan.structs import (
    ENUMS,
    ITEM_SPLITS,
    MAGIC,
    MAX_BIAS,
    MAX_STOP_TOKENS,
    MAX_TOP_LOGPROBS,
    STRUCTS,
    Field,
    Struct,
)


@dataclass(frozen=True, slots=True)
class _Scalar:
    cpp: str
    view: type["ctypes._SimpleCData[int]"] | type["ctypes._SimpleCData[float]"]
    code: str  # of the struct module

    @property
    def size(self) -> int:
        return ctypes.sizeof(self.view)


SCALARS = {
    "u8": _Scalar("uint8_t", ctypes.c_uint8, "B"),
    "u32": _Scalar("uint32_t", ctypes.c_uint32, "I"),
    "i32": _Scalar("int32_t", ctypes.c_int32, "i"),
    "f32": _Scalar("float", ctypes.c_float, "f"),
    "u64": _Scalar("uint64_t", ctypes.c_uint64, "Q"),
}


_BY_NAME = {struct.name: struct for struct in STRUCTS}
# The parts of a plan that `common/config.hpp` is rendered from.
_COMPILED = {"model", "attention", "pages", "schedule", "rings"}
# What it takes to resolve a count.
Constants = Mapping[str, int]


def constants(plan: Plan) -> Constants:
    """The counts of the table that depend on `plan`."""
    return {
        "kGroups": len(plan.model.groups),
        "kMaxBatch": plan.schedule.max_batch,
        "kMaxBatch + 1": plan.schedule.max_batch + 1,
        "kMaxStepTokens": max(program.tokens for program in plan.schedule.programs),
        "kPrograms": len(plan.schedule.programs),
        "kMaxSamples": max(program.samples for program in plan.schedule.programs),
        "kPagesPerRow": max(pages.pages_per_row for pages in plan.pages),
        "kHeads": plan.model.heads,
        "kHeadDim": plan.model.head_dim,
        "kItemBlocks": ITEM_SPLITS * plan.attention.split_tokens // plan.attention.page_size,
        **_ring_constants(plan.rings),
    }


def _ring_constants(rings: Rings) -> Constants:
    return {
        "kRings": rings.rings,
        "kRequestSlots": rings.request_slots,
        "kTokenSlots": rings.token_slots,
        "kArenaWords": rings.arena_words,
    }


@dataclass(frozen=True, slots=True)
class _Member:
    """A field, or padding, at its place."""

    field: Field
    offset: int
    size: int


def _place(struct: Struct, known: Constants) -> tuple[_Member, ...]:
    members: list[_Member] = []
    end = 0

    def pad(align: int) -> None:
        nonlocal end
        gap = -end % align
        if gap:
            members.append(_Member(Field(f"pad_{end}", "u8", (gap,)), end, gap))
            end += gap

    for field in struct.fields:
        size, natural = _extent(field.type, known)
        pad(max(field.align, natural))
        size *= prod(known[n] if isinstance(n, str) else n for n in field.count)
        members.append(_Member(field, end, size))
        end += size
    pad(struct.align)
    return tuple(members)


def _extent(name: str, known: Constants) -> tuple[int, int]:
    """Size and alignment of a type, in bytes."""
    if name in SCALARS:
        return SCALARS[name].size, SCALARS[name].size
    last = _place(_BY_NAME[name], known)[-1]
    return last.offset + last.size, _BY_NAME[name].align


def layout_hash(plan: Plan) -> str:
    """16 hexadecimal digits that two sides must agree on before one reads what the other wrote.

    They differ when a value of an enum or a place, a name or a type in a struct does, and when anything does that
    kernels are compiled for: two page sizes can have equal step buffers and yet another place for every key.
    """
    known = constants(plan)
    compiled = plan.model_dump(mode="json", include=_COMPILED, exclude={"rings": {"transport"}})
    table: list[object] = [
        sorted(compiled.items()),
        *((enum.__name__, [(member.name, member.value) for member in enum]) for enum in ENUMS),
        *((s.name, [(m.field.name, m.field.type, m.offset, m.size) for m in _place(s, known)]) for s in STRUCTS),
    ]
    return hashlib.sha256(repr(table).encode()).hexdigest()[:16]


def ring_bytes(rings: Rings) -> int:
    """Bytes of the ring memory; follows from the counts in `rings` alone."""
    return _extent("RingMemory", _ring_constants(rings))[0]


def structs_text(plan: Plan) -> str:
    """The C++ of `common/layout.hpp`: constants, enums and structs."""
    known = constants(plan)
    head = (
        f"constexpr uint64_t kLayoutHash = 0x{layout_hash(plan)};\n"
        f"constexpr uint64_t kMagic = 0x{MAGIC:016x};\n"
        f"constexpr int kMaxStopTokens = {MAX_STOP_TOKENS};\n"
        f"constexpr int kMaxBias = {MAX_BIAS};\n"
        f"constexpr int kMaxTopLogprobs = {MAX_TOP_LOGPROBS};\n"
    )
    return "\n".join([head, *map(_enum_text, ENUMS), *(_struct_text(struct, known) for struct in STRUCTS)])


def _enum_text(enum: type[IntEnum]) -> str:
    members = ", ".join(f"k{member.name.title().replace('_', '')} = {member.value}" for member in enum)
    return f"enum class {enum.__name__} : uint32_t {{ {members} }};\n"


def _struct_text(struct: Struct, known: Constants) -> str:
    members = _place(struct, known)
    lines = [f"// {struct.doc}", f"struct alignas({struct.align}) {struct.name} {{"]
    for member in members:
        field = member.field
        kind = SCALARS[field.type].cpp if field.type in SCALARS else field.type
        counts = "".join(f"[cfg::{n}]" if isinstance(n, str) else f"[{n}]" for n in field.count)
        comment = f"  // {field.doc}" if field.doc else ""
        lines.append(f"  {kind} {field.name}{counts};{comment}")
    lines.append("};")
    places = {member.field.name: member.offset for member in members if member.field in struct.fields}
    lines += [f"static_assert(offsetof({struct.name}, {name}) == {offset});" for name, offset in places.items()]
    lines.append(f"static_assert(sizeof({struct.name}) == {members[-1].offset + members[-1].size});")
    return "\n".join(lines) + "\n"


def view(name: str, plan: Plan) -> type[ctypes.Structure]:
    """The ctypes view of a struct."""
    return _view(name, constants(plan))


def fixed_view(name: str) -> type[ctypes.Structure]:
    """The ctypes view of a struct whose layout is the same for every plan. Raises KeyError for others."""
    return _view(name, {})


def fixed_reader(name: str) -> tuple[Reader, tuple[str, ...]]:
    """Reads the numbers of a struct whose layout is the same for every plan, those of structs in it too; their names.

    Bytes are left out. It takes a fraction of the time that ctypes does.
    """
    members = tuple(_flat(name))
    return Reader("=" + "".join(code for _, code in members)), tuple(name for name, code in members if code[-1] != "x")


def _flat(name: str) -> Iterator[tuple[str, str]]:
    for member in _place(_BY_NAME[name], {}):
        field = member.field
        if field.type not in SCALARS:
            yield from _flat(field.type)
        else:
            yield field.name, f"{member.size}x" if field.type == "u8" else SCALARS[field.type].code


def _view(name: str, known: Constants) -> type[ctypes.Structure]:
    fields = []
    for member in _place(_BY_NAME[name], known):
        field = member.field
        kind: Any = SCALARS[field.type].view if field.type in SCALARS else _view(field.type, known)
        for count in reversed(field.count):
            kind = kind * (known[count] if isinstance(count, str) else count)
        fields.append((field.name, kind))
    return type(name, (ctypes.Structure,), {"_fields_": fields})
