"""The table of shared structs: what g++ makes of it and what ctypes makes of it are the same."""

import ctypes
import subprocess

import pytest

from dualpace.plan import abi
from dualpace.plan.structs import STRUCTS, Finish

from .engines import write_sources
from .plans import NARROW, ROOMY, TIGHT, small_plan


def offsets_program(plan):
    """A program that prints each place of the table, and the lines that the ctypes view expects of it."""
    lines = ["#include <cstdio>", '#include "common/layout.hpp"', "int main() {"]
    expected = []
    for struct in STRUCTS:
        view = abi.view(struct.name, plan)
        lines.append(f'  std::printf("{struct.name} %zu\\n", sizeof(dp::{struct.name}));')
        expected.append(f"{struct.name} {ctypes.sizeof(view)}")
        for field in struct.fields:
            member = f"{struct.name}, {field.name}"
            size = f"sizeof(dp::{struct.name}::{field.name})"
            lines.append(f'  std::printf("{member} %zu %zu\\n", offsetof(dp::{member}), {size});')
            place = getattr(view, field.name)
            expected.append(f"{member} {place.offset} {place.size}")
    return "\n".join([*lines, "}\n"]), expected


def test_offsets_and_sizes_agree_with_the_compiler(tmp_path):
    write_sources(TIGHT, tmp_path)
    program, expected = offsets_program(TIGHT)
    (tmp_path / "offsets.cpp").write_text(program)
    subprocess.run(["g++", "-std=c++20", "-I.", "offsets.cpp", "-o", "offsets"], cwd=tmp_path, check=True)
    printed = subprocess.run(["./offsets"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == expected


def test_records_and_what_different_sides_write_have_cache_lines_of_their_own():
    for name in ("SubmitRecord", "AbortRecord", "TokenRecord"):
        record = abi.fixed_view(name)
        assert ctypes.sizeof(record) == 64
        assert record.flag.offset == 56
    control = abi.fixed_view("RingControl")
    lines = [getattr(control, name).offset // 64 for name in ("epoch", "token_read", "seen_epoch")]
    assert len(set(lines)) == 3


def test_the_hash_follows_the_structs_and_not_the_name():
    assert len({abi.layout_hash(plan) for plan in (ROOMY, TIGHT, NARROW)}) == 3
    assert abi.layout_hash(small_plan("other name")) == abi.layout_hash(ROOMY)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("attention", {"page_size": 16}),
        ("attention", {"split_tokens": 128}),
        ("model", {"head_dim": 64}),
        ("model", {"kv_heads": 2}),
        ("model", {"dtype": "bf16"}),
        ("model", {"norm_eps": 1e-5}),
        ("schedule", {"history_page": 8}),
    ],
)
def test_what_kernels_are_compiled_for_changes_the_hash_where_step_buffers_stay_equal(part, change):
    other = ROOMY.model_copy(update={part: getattr(ROOMY, part).model_copy(update=change)})
    assert len({ctypes.sizeof(abi.view("StepBuffers", plan)) for plan in (other, ROOMY)}) == 1
    assert abi.layout_hash(other) != abi.layout_hash(ROOMY)


def test_enums_are_spelled_out_for_cpp():
    members = ", ".join(f"k{name} = {value}" for name, value in [("None", 0), ("Stop", 1), ("Length", 2)])
    assert f"enum class Finish : uint32_t {{ {members}" in abi.structs_text(ROOMY)
    assert Finish.ENGINE_GONE == 5


@pytest.mark.parametrize("name", ["TokenRecord", "EngineStatus"])
def test_numbers_are_read_as_ctypes_has_them(name):
    reader, names = abi.fixed_reader(name)
    view = abi.fixed_view(name)
    raw = bytes(at % 61 + 1 for at in range(ctypes.sizeof(view)))
    read = dict(zip(names, reader.unpack(raw), strict=True))
    struct = view.from_buffer_copy(raw)
    for member, kind in view._fields_:
        value = getattr(struct, member)
        if isinstance(value, ctypes.Structure):
            assert {name: read[name] for name, _ in kind._fields_} == {n: getattr(value, n) for n, _ in kind._fields_}
        elif isinstance(value, int | float):
            assert read[member] == value
