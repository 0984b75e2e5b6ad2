"""A frontend on another host, as far as that needs no adapter: what it takes, and what it counts."""

import subprocess
import sys

import pytest

from dualpace.appliance.deployment import load
from dualpace.appliance.metrics import metrics_text
from dualpace.appliance.tally import Tally
from dualpace.engine.traffic import Traffic
from tests.appliance.bundles import write_bundle
from tests.appliance.fake_ring import FakeRing

HEAVY = ("torch", "numpy", "cuda", "transformers", "safetensors", "gguf")


def python(absent, code):
    """Runs `code` where modules are absent."""
    hidden = f"import sys; sys.modules.update(dict.fromkeys({absent!r}))\n"
    return subprocess.run([sys.executable, "-c", hidden + code], capture_output=True, text=True, check=False)


def test_it_needs_nothing_of_a_gpus_host():
    used = "import dualpace.appliance.outpost, dualpace.engine.remote, dualpace.engine.greeting, dualpace.plan.nic_key"
    ended = python(HEAVY, used)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    ("connect", "key", "words"),
    [
        ("localhost:7471", "there", "RDMA needs pyverbs: install python3-pyverbs or `pip install 'dualpace[rdma]'`"),
        ("localhost", "there", "--connect localhost: write HOST:PORT"),
        ("localhost:7471", "absent", "absent: No such file or directory; write a key there"),
    ],
    ids=["no verbs", "no port", "no key"],
)
def test_it_says_what_is_missing(tmp_path, connect, key, words):
    (tmp_path / "there").write_text("0123456789abcdef\n")
    arguments = ["outpost", "--connect", connect, "--device", "mlx5_0", "--key-file", str(tmp_path / key)]
    main = f"sys.argv = {arguments!r}; from dualpace.appliance.outpost import main; sys.exit(main())"
    ended = python(("pyverbs",), main)
    assert ended.returncode == 2
    assert words in ended.stderr


def test_what_it_carries_is_among_the_metrics(tmp_path):
    traffic = Traffic(writes=3, reads=2, written_bytes=200, read_bytes=88, doorbells=2, connections=1)
    traffic.faults["unreachable"] += 1
    deployment = load(write_bundle(tmp_path / "bundle"))
    text = metrics_text(deployment, FakeRing().status(), True, Tally().totals(), traffic)
    for line in (
        'dualpace_rdma_operations_total{model_name="toy",kind="write"} 3',
        'dualpace_rdma_bytes_total{model_name="toy",kind="read"} 88',
        'dualpace_rdma_doorbells_total{model_name="toy"} 2',
        'dualpace_rdma_faults_total{model_name="toy",fault="unreachable"} 1',
        'dualpace_rdma_faults_total{model_name="toy",fault="closed"} 0',
    ):
        assert line in text.splitlines()
    assert "rdma" not in metrics_text(deployment, FakeRing().status(), True, Tally().totals())
