"""`dualpace bench` on the real line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.appliance import Served

pytestmark = pytest.mark.model


def test_requests_have_exactly_the_tokens_that_were_asked_for(appliance: Served, tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    load = ("--concurrency", "2", "--requests", "6", "--workload", "shared-prefix:20,12,64", "-o", output)
    command = [sys.executable, "-m", "dualpace.cli", "bench", appliance.url, *load]
    subprocess.run(command, check=True, timeout=300)
    (run,) = json.loads(output.read_text())["runs"]
    assert (run["requests"], run["succeeded"], run["errors"], run["other_lengths"]) == (6, 6, {}, 0)
    assert run["latencies"]["ttft"]["count"] == 6
    assert run["latencies"]["e2e"]["mean"] > run["latencies"]["ttft"]["mean"] > 0
