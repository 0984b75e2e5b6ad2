"""What the plan counts for rows with KV in host memory is what the scheduler takes."""

import subprocess

import pytest

from dualpace.build.units import HOST
from dualpace.plan.recall import SlowLane, device_bytes, summary_bytes
from tests.plans import example
from tests.scheduler.engines import write_sources

PROGRAM = """
#include <cstdio>
#include "common/recall.hpp"
int main() { std::printf("%zu", sizeof(dp::RecallMemory)); }
"""


@pytest.mark.parametrize("selection", ["exact", {"blocks": 256}], ids=["exact", "sparse"])
def test_the_plan_knows_what_the_slow_lane_takes(selection, tmp_path):
    plan = example("llama-3.1-8b-128k-offload", offload={"selection": selection})
    write_sources(plan, tmp_path)
    (tmp_path / "size.cpp").write_text(PROGRAM)
    subprocess.run(["g++", *HOST, "size.cpp", "-o", "size"], cwd=tmp_path, check=True)
    took = int(subprocess.run([tmp_path / "size"], check=True, capture_output=True, text=True).stdout)
    pages = plan.pages[0].pages_per_row
    lane = SlowLane(plan.schedule.slow_rows, plan.offload.cache_blocks)
    counted = device_bytes(plan.model, plan.offload, pages, lane)
    # Beside this, summaries and a score a page are the engine's.
    scores = 4 * lane.rows * pages
    summaries = plan.offload.host_pages * summary_bytes(plan.model) if plan.offload.sparse_blocks else 0
    assert took + scores + summaries == pytest.approx(counted, rel=0.02)
