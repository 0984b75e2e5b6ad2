"""The report of `dualpace plan`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dualpace.cli import app
from dualpace.plan.plan import Plan
from dualpace.plan.quantity import size_text, time_text
from dualpace.plan.report import json_report, program_facts, text_report

from .deployments import GEMMA_270M, LLAMA_8B, plan


def test_text_shows_the_figures_that_a_deployment_is_judged_by():
    text = text_report(plan(LLAMA_8B))
    for figure in (
        "8,030,261,248",
        "128 KiB a token",
        "GQA 4",
        "up to 1, 8, 32, 64, 96, 128, 160,",
        "4,540 GB/s",
    ):
        assert figure in text
    assert "   1    1,024  3.34 ms  weights   18.7 ms  compute         300  " in text
    assert "   8   32,768  10.9 ms  KV" in text


def test_floor_and_forecast_stand_apart():
    deployment = plan(LLAMA_8B)
    floor, forecast = text_report(deployment).split("\nforecast, an estimate from ")
    assert "floor, the least time at 4,540 GB/s, 790 TFLOP/s (measured" in floor
    assert f"   1    1,024  {time_text(deployment.forecast.cells[0].seconds)}  products" in forecast
    assert "no forecast: no kernel was measured on a100" in text_report(plan(LLAMA_8B, "a100"))


def test_text_says_that_the_cpu_figures_are_nominal():
    assert "nominal; nothing was probed" in text_report(plan(GEMMA_270M, gpu=None))


def test_text_says_what_large_rings_need():
    assert "--shm-size" not in text_report(plan(LLAMA_8B))
    found = plan(LLAMA_8B, nic__rings=64)
    assert found.rings.bytes > 64 * 2**20
    assert f"a container needs --shm-size {-(-found.rings.bytes // 2**20)}m" in text_report(found)


def test_lines_fit_a_terminal():
    for deployment in (plan(GEMMA_270M, gpu=None), plan(LLAMA_8B)):
        assert max(map(len, text_report(deployment, 120).splitlines())) <= 120


@pytest.mark.parametrize("format_", ["text", "json"])
def test_the_command_writes_the_report(format_):
    result = CliRunner().invoke(app, ["plan", "specs/quickstart.yaml", "--format", format_])
    assert result.exit_code == 0
    if format_ == "json":
        assert Plan.model_validate_json(result.stdout).name == "quickstart"
    else:
        assert result.stdout.startswith("quickstart: gemma3 on cpu\n")


def test_a_gpu_that_parks_says_when():
    assert ("idle", "parks after 10.0 s") in list(program_facts(plan(LLAMA_8B, scheduler__park_after="10s")))
    assert "idle" not in dict(program_facts(plan(LLAMA_8B)))


def test_json_keeps_its_keys():
    found = json.loads(json_report(plan(LLAMA_8B)))
    assert list(found) == [
        "name", "model", "weights", "attention", "pages", "schedule", "rings", "nic", "offload", "target", "memory",
        "serving", "parameters", "weight_bytes", "kv_bytes_per_token", "floors", "forecast", "policy",
        "recall", "cooperation",
    ]  # fmt: skip
    assert list(found["floors"][0]) == [
        "rows", "context", "route", "seconds", "weight_seconds", "flop_seconds", "kv_seconds", "bound", "ttft_seconds",
        "ttft_bound", "tokens_per_second",
    ]  # fmt: skip
    assert list(found["forecast"]) == ["basis", "cells"]
    assert list(found["forecast"]["cells"][0]) == [
        "rows", "context", "seconds", "product_seconds", "attention_seconds", "other_seconds", "launch_seconds",
        "bound", "ttft_seconds", "ttft_bound", "tokens_per_second",
    ]  # fmt: skip


def test_a_terminal_without_unicode_gets_an_ascii_bar():
    command = [sys.executable, "-m", "dualpace.cli", "plan", "specs/quickstart.yaml"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "70"}, capture_output=True
    )
    assert done.returncode == 0
    bar = next(line for line in done.stdout.decode("ascii").splitlines() if line.startswith("  [#"))
    assert len(bar) == 70


def test_a_spec_that_does_not_plan_ends_with_findings(tmp_path):
    broken = Path("specs/quickstart.yaml").read_text(encoding="utf-8").replace("kv_budget: 512MiB", "kv_budget: 1MiB")
    (tmp_path / "broken.yaml").write_text(broken, encoding="utf-8")
    result = CliRunner().invoke(app, ["plan", str(tmp_path / "broken.yaml")])
    assert result.exit_code == 1
    assert result.stdout == ""


def test_quantities_have_three_figures_and_a_unit():
    assert [size_text(n) for n in (0, 1023, 1536, 2**30, 5 * 2**40)] == ["0 B", "1023 B", "1.5 KiB", "1 GiB", "5 TiB"]
    assert [time_text(t) for t in (4e-6, 3.336e-3, 0.0218, 2.0)] == ["4.00 us", "3.34 ms", "21.8 ms", "2.00 s"]
