import pytest

from dualpace.engine import threads


@pytest.fixture
def cores(monkeypatch):
    """Four hardware threads of two cores, unless a test says otherwise."""
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(threads, "_siblings", lambda cpu: f"{cpu % 2},{cpu % 2 + 2}")


@pytest.mark.parametrize(
    ("limit", "expected"), [("max 100000", 2), ("150000 100000", 1), ("50000 100000", 1), ("900000 100000", 2)]
)
def test_threads_are_the_cores_within_the_quota_and_at_least_one(limit, expected, cores, monkeypatch, tmp_path):
    (tmp_path / "cpu.max").write_text(limit + "\n")
    monkeypatch.setattr(threads, "_QUOTA", tmp_path / "cpu.max")
    assert threads.default_threads() == expected


def test_without_a_quota_every_core_counts(cores, monkeypatch, tmp_path):
    monkeypatch.setattr(threads, "_QUOTA", tmp_path / "absent")
    assert threads.default_threads() == 2
