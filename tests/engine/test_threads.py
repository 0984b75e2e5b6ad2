import pytest

from dualpace.engine import threads


@pytest.fixture
def cores(monkeypatch):
    """Four hardware threads of two cores, unless a test says otherwise."""
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(threads, "_siblings", lambda cpu: f"{cpu % 2},{cpu % 2 + 2}")


LIMITS = [("max", "100000", 2), ("150000", "100000", 2), ("50000", "100000", 1), ("900000", "100000", 2)]


@pytest.mark.parametrize(("quota", "period", "expected"), LIMITS)
def test_threads_are_the_cores_within_the_quota_and_at_least_one(quota, period, expected, cores, monkeypatch, tmp_path):
    (tmp_path / "cpu.max").write_text(f"{quota} {period}\n")
    monkeypatch.setattr(threads, "_CGROUP", tmp_path)
    assert threads.default_threads() == expected


@pytest.mark.parametrize(("quota", "period", "expected"), LIMITS)
def test_a_quota_of_the_first_cgroup_version_counts_too(quota, period, expected, cores, monkeypatch, tmp_path):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota.replace('max', '-1')}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text(f"{period}\n")
    monkeypatch.setattr(threads, "_CGROUP", tmp_path)
    assert threads.default_threads() == expected


def test_without_a_quota_every_core_counts(cores, monkeypatch, tmp_path):
    monkeypatch.setattr(threads, "_CGROUP", tmp_path)
    assert threads.default_threads() == 2
