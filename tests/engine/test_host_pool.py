"""Memory of the host pool, and what is said of it."""

import ctypes

from dualpace.engine import host_pool

MIB = 2**20


def test_a_pool_is_zeroed_and_says_what_it_got():
    notes = []
    pool = host_pool.map_pool(8 * MIB, note=notes.append)
    assert pool[:] == bytes(8 * MIB)
    assert notes[0].startswith("host pool of 8 MiB, ")


def test_huge_pages_are_counted_in_the_mapping_alone(monkeypatch, tmp_path):
    smaps = tmp_path / "smaps"
    smaps.write_text(
        "7f0000000000-7f0000200000 rw-p 0\nAnonHugePages:      2048 kB\n"
        "7f0000400000-7f0000800000 rw-p 0\nAnonHugePages:      4096 kB\n"
    )
    monkeypatch.setattr(host_pool, "_SMAPS", smaps)
    assert host_pool._huge_bytes(0x7F0000400000) == 4 * MIB
    assert host_pool._huge_bytes(0x7F0000C00000) == 0
    monkeypatch.setattr(host_pool, "_SMAPS", tmp_path / "none")
    assert host_pool._huge_bytes(0x7F0000400000) == 0


def test_a_pool_that_cannot_be_spread_over_nodes_says_so(monkeypatch):
    notes = []
    monkeypatch.setattr(host_pool, "_interleave", lambda *_: False)
    host_pool.map_pool(MIB, (0, 1), notes.append)
    assert notes[0].endswith(", not spread over NUMA nodes")


def test_the_kernel_takes_the_nodes_that_there_are_and_refuses_others():
    pool = host_pool.map_pool(MIB, note=lambda text: None)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pool))
    assert not host_pool._interleave(address, MIB, (63,))
