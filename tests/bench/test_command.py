"""`dualpace bench` as its user meets it."""

import csv
import json
import signal
import subprocess
import sys

import pytest

from dualpace.bench import offer as offering
from dualpace.bench.load import Load

CALM = json.dumps({"script": {"ttft": 0.01, "itl": 0.002}})


def bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dualpace.cli", "bench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_server_is_measured_and_the_result_kept_and_compared(server, tmp_path):
    outputs = tmp_path / "r.json", tmp_path / "r.csv", tmp_path / "r.html"
    written = [argument for path in outputs for argument in ("-o", path)]
    load = ("--rate", "50,100", "--requests", 40, "--workload", "fixed:20,5", "--slo", "ttft=1s", "--body", CALM)
    done = bench(server.url, *load, "--repeat", 2, "--label", "mine", *written)
    assert done.returncode == 0, done.stderr
    assert "fixed:20,5, 50 requests/s, seed 0" in done.stdout
    assert "100.0 (" in done.stdout
    assert "within TTFT 1000 ms" in done.stdout
    result = json.loads(outputs[0].read_text())
    assert [(run["load"]["rate"], run["load"]["seed"]) for run in result["runs"]] == [
        (50, 0),
        (100, 0),
        (50, 1),
        (100, 1),
    ]
    assert all(run["succeeded"] == 40 for run in result["runs"])
    assert (result["label"], result["server"]["model"]) == ("mine", "scripted")
    assert result["machine"]["cores"] >= 1
    with outputs[1].open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["ttft_p50_s"]) for row in rows] == [
        run["latencies"]["ttft"]["quantiles"]["p50"]["value"] for run in result["runs"]
    ]
    compared = bench("compare", outputs[0], outputs[0])
    assert compared.returncode == 0
    assert "2 pairs of runs" in compared.stdout
    assert "1.000 (1.000 to 1.000)" in compared.stdout


def test_each_request_has_a_line_with_what_became_of_it(server, tmp_path):
    each = tmp_path / "each.csv"
    load = ("--requests", 10, "--rate", "100", "--workload", "fixed:9,5", "--each", each)
    assert bench(server.url, *load, "--body", CALM).returncode == 0
    assert bench(server.url, *load, "--seed", 1, "--body", json.dumps({"script": {"end": "error"}})).returncode == 1
    with each.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["seed"] for row in rows] == ["0"] * 10 + ["1"] * 10
    assert {row["error"] for row in rows[:10]} == {""}
    assert {row["error"] for row in rows[10:]} == {"stream: generation_failed"}
    for row in rows[:10]:
        times = [float(row[f"{name}_s"]) for name in ("intended", "sent", "first", "last", "end")]
        assert times == sorted(times)
        assert (row["prompt"], row["tokens"], row["pieces"]) == ("9", "5", "5")


def test_a_server_is_saturated_step_by_step(server):
    done = bench(server.url, "--concurrency", 1, "--saturate", "--duration", "1s", "--workload", "fixed:8,8",
                 "--body", json.dumps({"script": {"ttft": 0.2}}))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "fixed:8,8, 1 client," in done.stdout
    assert "fixed:8,8, 4 clients" in done.stdout


def test_what_was_measured_before_an_interruption_is_kept(server, tmp_path):
    output = tmp_path / "r.json"
    load = ("--rate", "200,1", "--requests", "20", "--workload", "fixed:8,4", "-o", output)
    command = [sys.executable, "-m", "dualpace.cli", "bench", server.url, *map(str, load)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            if "E2E" in line:
                break
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    (run,) = json.loads(output.read_text())["runs"]
    assert (run["load"]["rate"], run["succeeded"]) == (200, 20)


def test_what_measuring_needs_is_told_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(offering, "find_spec", lambda name: None if name == "uvloop" else name)
    with pytest.raises(offering.OfferError, match=r"needs uvloop: run `pip install 'dualpace\[bench\]'`"):
        offering.offer(Load(url="http://x", model="m"), "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.yaml",), "nowhere.yaml is neither a file nor a URL"),
        (("http://127.0.0.1:1",), "cannot be reached"),
        (("URL", "--rate", "x"), "--rate x is not understood"),
        (("URL", "--rate", "1", "--concurrency", "1"), "exclude each other"),
        (("URL", "--slo", "speed=1s"), "--slo speed=1s is not understood"),
        (("URL", "--slo", "ttft=1"), "write it like 250ms"),
        (("URL", "--duration", "60"), "--duration '60'"),
        (("URL", "--cpus", "a"), "--cpus a is not understood"),
        (("URL", "--body", "[]"), "--body is no JSON object"),
        (("URL", "--ids", "9:3"), "--ids 9:3"),
        # Before anything is connected to or served.
        (("http://127.0.0.1:1", "--workload", "no-such"), "'no-such' is no file"),
        (("http://127.0.0.1:1", "--workload", "fixed:0"), "write it like fixed:"),
        (("URL", "-o", "/nowhere/result.json"), "/nowhere/result.json: No such file"),
        (("URL", "--each", "/nowhere/each.csv"), "/nowhere/each.csv: No such file"),
        (("URL", "-o", "result.txt"), "name it .json, .html or .csv"),
        (("URL", "--interfere", "1", "--cpus", "4095"), "CPU 4095"),
    ],
)
def test_what_is_not_understood_is_told_in_one_line(server, arguments, message):
    done = bench(*(server.url if argument == "URL" else argument for argument in arguments))
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_and_start_up_need_no_more_than_the_compile_side():
    code = "import sys, dualpace.cli.bench, dualpace.bench.offer; print({'numpy', 'uvloop'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
    assert "URL|SPEC|BUNDLE" in bench("run", "--help").stdout
    assert "compare" in bench("--help").stdout
