"""`plan A B` and `plan A --what-if`: what differs and nothing else."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dualpace.cli import app
from dualpace.plan.comparison import Difference, differences, json_comparison, text_comparison
from dualpace.plan.plan import Plan
from dualpace.plan.quantity import time_text

from .deployments import GEMMA_270M, LLAMA_8B, plan

LLAMA, QWEN = Path("specs/llama-3.1-8b-h200.yaml"), Path("specs/qwen3-14b-h100.yaml")
A, B = plan(LLAMA_8B), plan(LLAMA_8B, scheduler__max_batch=64)
NAMES = ("a.yaml", "b.yaml")


def command(*arguments):
    return CliRunner().invoke(app, ["plan", *map(str, arguments)], env={"COLUMNS": "100"})


def test_only_what_differs_is_there():
    found = {each.field: each for each in differences(A, B)}
    assert found["schedule.max_batch"] == Difference("schedule.max_batch", 256, 64)
    assert found["memory.logits"].ratio == 0.25
    assert found["schedule.programs[decode x 256].rows"] == ("schedule.programs[decode x 256].rows", 256, None)
    assert found["floors[256 x 1024].seconds"].b is None
    assert not any(field.startswith(("model.", "weights.", "rings.", "target.")) for field in found)


@pytest.mark.parametrize("other", [B, plan(LLAMA_8B, "b200"), plan(GEMMA_270M, gpu=None)])
def test_differences_read_the_same_from_both_sides(other):
    there, back = differences(A, other), differences(other, A)
    assert {(each.field, each.a, each.b) for each in there} == {(each.field, each.b, each.a) for each in back}
    assert there


def test_text_and_truth_have_no_ratio():
    assert Difference("x", "bf16", "fp16").ratio is None
    assert Difference("x", False, True).ratio is None
    assert Difference("x", 0, 5).ratio is None
    assert Difference("x", 2.0, 5).ratio == 2.5


def test_the_text_shows_both_values_and_the_ratio():
    text = text_comparison(A, B, NAMES)
    assert text.startswith("a: a.yaml\nb: b.yaml\n\nmemory of a\n")
    assert "  schedule.max_batch 256 64 0.25\n" in re.sub(r"\b +", " ", text)
    assert "   256    1,024  12.4 ms       -      -  4.72 s       -      -\n" in text
    assert max(map(len, text.splitlines())) <= 120


def test_operating_points_show_times_and_ratios():
    text = text_comparison(A, plan(LLAMA_8B, "h100"), NAMES)
    floor, forecast = text.split("\nfloor\n")[1].split("\nforecast, an estimate\n")
    assert "     1    1,024  3.34 ms  4.52 ms   1.36  18.7 ms  15.0 ms   0.81\n" in floor
    tpot, ttft = (time_text(seconds) for seconds in (A.forecast.cells[0].seconds, A.forecast.cells[0].ttft_seconds))
    assert f"     1    1,024  {tpot}       -      -  {ttft}       -      -\n" in forecast


def test_equal_plans_are_said_to_be_the_same():
    assert differences(A, A) == ()
    assert text_comparison(A, A, NAMES) == "a: a.yaml\nb: b.yaml\n\nthe plans are the same\n"


def test_json_has_both_plans_and_their_differences():
    found = json.loads(json_comparison(A, B, ["scheduler.max_batch=64"]))
    assert list(found) == ["changes", "a", "b", "differences"]
    assert (Plan.model_validate(found["a"]), Plan.model_validate(found["b"])) == (A, B)
    assert found["changes"] == ["scheduler.max_batch=64"]
    assert {"field": "schedule.max_batch", "a": 256, "b": 64, "ratio": 0.25} in found["differences"]


def test_the_command_compares_two_specs():
    done = command(LLAMA, QWEN)
    assert done.exit_code == 0
    assert done.stdout.startswith(f"a: {LLAMA}\nb: {QWEN}\n")
    assert max(map(len, done.stdout.splitlines())) <= 120
    found = json.loads(command(LLAMA, QWEN, "--format", "json").stdout)
    assert found["changes"] == []
    assert Plan.model_validate(found["b"]).name == "qwen3-14b-h100"


def test_the_command_changes_a_spec():
    done = command(LLAMA, "--what-if", "max_batch=64", "--what-if", "page_size=32")
    assert done.exit_code == 0
    assert done.stdout.startswith(f"a: {LLAMA}\nb: with scheduler.max_batch=64, attention.page_size=32\n")
    found = json.loads(command(LLAMA, "--what-if", "max_batch=64", "--format", "json").stdout)
    assert found["changes"] == ["scheduler.max_batch=64"]
    assert (found["a"]["schedule"]["max_batch"], found["b"]["schedule"]["max_batch"]) == (256, 64)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((LLAMA, "--what-if", "max_bach=64"), 1, "did you mean scheduler.max_batch?"),
        ((LLAMA, QWEN, "--what-if", "max_batch=64"), 2, "--what-if changes one spec: name no other"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(arguments, code, message):
    done = command(*arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    assert message in done.stderr
