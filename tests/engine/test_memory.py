"""Making the ring file: one engine alone has a path, whatever others do at the same time."""

import os

import pytest

from dualpace.engine.memory import RingMemory, RingMemoryError
from dualpace.plan.manifest import read_manifest
from dualpace.plan.plan import Plan


@pytest.fixture
def plan(bundle) -> Plan:
    return read_manifest(bundle).plan


@pytest.fixture
def overtaken(monkeypatch):
    """Has something happen once, right before a function of `os` is called."""

    def arrange(name, happens):
        call = getattr(os, name)

        def once(*arguments):
            monkeypatch.setattr(os, name, call)
            happens()
            return call(*arguments)

        monkeypatch.setattr(os, name, once)

    return arrange


def leave_behind(path, plan):
    """The file of an engine that was killed."""
    memory = RingMemory(path, plan)
    path.rename(path.with_name("kept"))
    memory.close()
    path.with_name("kept").rename(path)


def test_of_two_engines_at_a_new_path_the_first_has_it(plan, tmp_path, overtaken):
    path = tmp_path / "rings"
    others = []
    overtaken("posix_fallocate", lambda: others.append(RingMemory(path, plan)))
    with pytest.raises(RingMemoryError, match="another engine serves these rings"):
        RingMemory(path, plan)
    assert os.path.samestat(path.stat(), os.fstat(others[0].file))
    others[0].close()
    assert list(tmp_path.iterdir()) == []


def test_of_two_engines_that_replace_a_file_left_behind_one_has_the_path(plan, tmp_path, overtaken):
    path = tmp_path / "rings"
    leave_behind(path, plan)
    refused = []

    def other():
        with pytest.raises(RingMemoryError, match="another engine serves these rings") as caught:
            RingMemory(path, plan)
        refused.append(caught)

    overtaken("posix_fallocate", other)
    memory = RingMemory(path, plan)
    assert refused
    assert os.path.samestat(path.stat(), os.fstat(memory.file))
    memory.close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_replaced_between_look_and_lock_is_not_replaced_again(plan, tmp_path, overtaken):
    path = tmp_path / "rings"
    leave_behind(path, plan)
    others = []
    overtaken("pread", lambda: others.append(RingMemory(path, plan)))
    with pytest.raises(RingMemoryError, match="another engine serves these rings"):
        RingMemory(path, plan)
    assert os.path.samestat(path.stat(), os.fstat(others[0].file))
    others[0].close()


def test_a_path_is_never_without_a_file_while_one_is_replaced(plan, tmp_path, monkeypatch):
    path = tmp_path / "rings"
    leave_behind(path, plan)
    monkeypatch.setattr(type(path), "unlink", lambda file, missing_ok=False: file == path and pytest.fail("removed"))
    RingMemory(path, plan)
    monkeypatch.undo()


def test_the_same_process_id_in_another_container_is_no_obstacle(plan, tmp_path, monkeypatch):
    first, second = tmp_path / "rings", tmp_path / "others"
    monkeypatch.setattr(os, "getpid", lambda: 1)
    (tmp_path / ".rings.1").touch()
    memory = RingMemory(first, plan)
    RingMemory(second, plan).close()
    memory.close()
    assert (tmp_path / ".rings.1").exists()
