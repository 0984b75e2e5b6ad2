"""The store keeps what was made, whole, whoever makes it."""

import hashlib
import os
import threading
from pathlib import Path

import pytest

from dualpace.build.store import Store, digest


def test_an_entry_is_there_once_it_is_whole(tmp_path):
    store = Store(tmp_path)

    def make(folder):
        (folder / "a").write_text("1")
        assert store.find("k" * 64) is None
        (folder / "b").write_text("2")

    entry = store.add("k" * 64, make)
    assert store.find("k" * 64) == entry
    assert sorted(path.name for path in entry.iterdir()) == ["a", "b"]


def test_a_relative_store_is_the_same_from_every_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store(Path("store"))

    def make(folder):
        monkeypatch.chdir("/")
        (folder / "output").write_text("made")

    store.add("abcd", make)
    assert (tmp_path / "store" / "ab" / "abcd" / "output").read_text() == "made"


def test_builds_that_make_the_same_entry_at_once_both_get_it(tmp_path):
    store = Store(tmp_path)
    barrier = threading.Barrier(4)
    entries = []

    def add():
        def make(folder):
            (folder / "a").write_text("same")
            barrier.wait()  # all four are in the middle of it

        entries.append(store.add("k" * 64, make))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(entries) == {store.find("k" * 64)}
    assert len(entries) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["kk"]


def test_what_fails_leaves_nothing(tmp_path):
    store = Store(tmp_path)

    def make(folder):
        (folder / "a").write_text("1")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        store.add("k" * 64, make)
    assert store.find("k" * 64) is None
    assert [path.name for path in tmp_path.iterdir()] == ["kk"]


def test_a_file_is_hashed_again_only_when_it_changed(tmp_path, monkeypatch):
    store = Store(tmp_path / "store")
    file = tmp_path / "file"
    file.write_text("one")
    assert store.file_digest(file) == hashlib.sha256(b"one").hexdigest()
    monkeypatch.setattr("dualpace.build.store.file_digest", lambda path: "read again")
    assert store.file_digest(file) == hashlib.sha256(b"one").hexdigest()
    os.utime(file, ns=(1, 1))
    assert store.file_digest(file) == "read again"


def test_parts_of_a_key_do_not_run_together():
    assert digest(["ab", "c"]) != digest(["a", "bc"]) != digest(["abc"])
