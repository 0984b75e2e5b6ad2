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


def test_workers_have_a_hardware_thread_of_each_core_and_nodes_take_turns(cores, monkeypatch, tmp_path):
    monkeypatch.setattr(threads, "_CGROUP", tmp_path)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(threads, "_siblings", str)
    monkeypatch.setattr(threads, "_node", lambda cpu: cpu // 2)
    assert threads.worker_cpus() == (0, 2, 1, 3)
    assert threads.worker_cpus(3) == (0, 2, 1)
    assert threads.numa_nodes() == (0, 1)


def test_workers_are_no_more_than_the_quota_whatever_is_asked_for(cores, monkeypatch, tmp_path):
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    monkeypatch.setattr(threads, "_CGROUP", tmp_path)
    monkeypatch.setattr(threads, "_siblings", str)
    assert len(threads.worker_cpus(4)) == 2


@pytest.mark.parametrize(("links", "node"), [(["node1", "cache"], 1), ([], 0)])
def test_a_node_is_what_the_kernel_says_or_the_first(links, node, monkeypatch, tmp_path):
    for link in links:
        (tmp_path / "cpu3" / link).mkdir(parents=True)
    monkeypatch.setattr(threads, "_CPUS", tmp_path)
    assert threads._node(3) == node
