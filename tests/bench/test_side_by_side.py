"""The benchmark of two servers beside each other, with servers that are made of this package's tests."""

import json
import math
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from benchmarks import side_by_side, side_page
from benchmarks.model_folder import words, write_folder
from benchmarks.servers import Server, alive
from benchmarks.side_by_side import Bench, Cell, Cores, pairs, run, stopped
from dualpace.lint.runner import lint_file
from dualpace.plan.checkpoint import read_checkpoint

CORES = Cores.of(sorted(os.sched_getaffinity(0)))
LOAD = Cell(rate=200, clients=None, busy=0, placement="shared", requests=40)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def servers(tmp_path, monkeypatch):
    monkeypatch.setattr(side_by_side, "WARM_UP_S", 0.1)
    monkeypatch.setattr(side_by_side, "SETTLE", {"rate": 20.0, "duration": 0.1})
    found = {}
    for name in ("dualpace", "vllm"):
        port = free_port()
        command = [sys.executable, "-m", "tests.bench.scripted_server", "--port", str(port)]
        found[name] = Server(name, command, port, "scripted", tmp_path, host="scripted_server", about={"of": name})
    yield found
    for server in found.values():
        server.stop()


def started(server: Server) -> Server:
    server.launch(CORES.busy)
    server.wait()
    return server


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("24/28/quiet/2000", Cell(24, None, 28, "quiet", 2000)),
        ("8/0/shared", Cell(8, None, 0, "shared")),
        ("256c/14/stopped", Cell(None, 256, 14, "stopped")),
    ],
)
def test_a_cell_is_read_as_it_is_written(text, cell):
    assert Cell.read(text) == cell
    assert text.startswith(cell.name)


@pytest.mark.parametrize("text", ["24/28", "24/28/loud", "c/0/shared", "24/0/shared/"])
def test_what_is_no_cell_is_refused(text):
    with pytest.raises(ValueError, match="no cell"):
        Cell.read(text)


def test_a_cell_has_the_requests_that_were_asked_for():
    warm_up, duration = Cell.read("24/0/shared/2000").seconds
    assert 24 * (duration - warm_up) == pytest.approx(2100)


def test_who_is_first_alternates_and_what_was_measured_is_left_out():
    cells = [Cell.read(text) for text in ("8/0/shared", "24/0/shared", "24/28/stopped", "24/28/quiet")]
    orders = [order for _, order in pairs(cells, [], 0)]
    assert orders == [["vllm", "dualpace"], ["dualpace", "vllm"], ["dualpace"], ["dualpace", "vllm"]]
    done = [{"cell": cell, "server": name, "seed": 0} for cell, name in
            (("8/0/shared", "vllm"), ("24/0/shared", "vllm"), ("24/0/shared", "dualpace"))]  # fmt: skip
    assert [cell.name for cell, _ in pairs(cells, done, 0)] == ["8/0/shared", "24/28/stopped", "24/28/quiet"]
    assert len(list(pairs(cells, done, 1))) == 4


def test_cores_are_apart_where_there_are_enough():
    cores = Cores.of(range(16))
    assert cores == (tuple(range(12)), (12, 13), (14, 15))
    assert Cores.of([0, 1]) == ((0, 1),) * 3


def test_both_servers_are_measured_and_a_second_run_adds_what_is_missing(servers, tmp_path, capsys):
    file = tmp_path / "result.json"
    run(servers, [LOAD], 0, math.inf, file)
    report = json.loads(file.read_text())
    assert [line["server"] for line in report["runs"]] == ["vllm", "dualpace"]
    for line in report["runs"]:
        assert (line["cell"], line["sitting"], line["errors"]) == ("200/0/shared", 0, {})
        assert line["succeeded"] == line["requests"] > 20
        assert line["latencies"]["tpot"]["quantiles"]["p99"]["value"] >= 0
    assert side_page.runs(report).count("\n| 200 | 0 |") == 2
    assert side_page.ratios(report).count("\n| 200/0/shared |") == 1
    assert report["sittings"][0]["servers"] == {"dualpace": {"of": "dualpace"}, "vllm": {"of": "vllm"}}
    run(servers, [LOAD], 0, math.inf, file)
    assert json.loads(file.read_text())["runs"] == report["runs"]
    run(servers, [LOAD], 1, time.monotonic() + 1, file)
    assert json.loads(file.read_text())["runs"] == report["runs"]
    assert "left for another time" in capsys.readouterr().out


def test_dualpace_is_gone_while_the_other_is_measured(servers):
    ours, other = (started(servers[name]) for name in ("dualpace", "vllm"))
    pid = ours.pid
    Bench(servers, CORES).measure(LOAD, "vllm", 0)
    assert not alive(pid)
    assert alive(other.pid)
    Bench(servers, CORES).measure(LOAD, "dualpace", 0)
    assert alive(other.pid)


def test_a_server_that_was_left_running_is_found(servers, tmp_path):
    server = started(servers["vllm"])
    again = Server("vllm", server.command, server.port, "scripted", tmp_path)
    assert again.find()
    assert again.processes() == [server.pid]
    server.stop()
    assert not again.find()


def test_a_server_that_ends_says_what_it_wrote(tmp_path):
    server = Server("broken", [sys.executable, "-c", "raise SystemExit('no GPU')"], free_port(), "", tmp_path)
    server.launch(CORES.busy)
    with pytest.raises(RuntimeError, match="no GPU"):
        server.wait()


def test_every_thread_moves_and_a_stopped_process_goes_on_afterwards(servers):
    server = started(servers["dualpace"])
    core = CORES.busy[-1]
    server.place((core,), (core,))
    assert {frozenset(os.sched_getaffinity(int(task.name))) for task in Path(f"/proc/{server.pid}/task").iterdir()} == {
        frozenset({core})
    }
    with stopped(server.processes(server.host)):
        os.waitpid(server.pid, os.WUNTRACED)
        assert not server.healthy()
    assert server.healthy()
    os.kill(server.pid, signal.SIGTERM)


def test_the_folder_that_vllm_reads_has_the_shape_of_the_spec(tmp_path):
    plan = lint_file(side_by_side.SPEC, None).plan
    shape = read_checkpoint(write_folder(plan.model, tmp_path)).shape
    assert (shape.layers, shape.kv_heads, shape.vocab, shape.rope_scaling.factor) == (32, 8, 128256, 8.0)


def test_every_token_is_text_of_its_own():
    tokenizer = words(20_000)
    texts = [tokenizer.decode([token]) for token in range(256, 20_000)]
    assert all(text.startswith(" ") and len(text) > 3 for text in texts)
    assert len(set(texts)) == len(texts) == tokenizer.get_vocab_size() - 256


def figures(low: float | None, tpot: float) -> dict:
    quantiles = {name: {"value": tpot, "low": low, "high": low and 2 * tpot} for name in ("p50", "p99")}
    return {name: {"quantiles": quantiles} for name in ("ttft", "tpot", "itl")}


def line(cell: str, server: str, tpot: float, **changes: object) -> dict:
    return {
        "cell": cell, "server": server, "seed": 0, "requests": 1000, "succeeded": 998, "energy": 0.5,
        "latencies": figures(None, tpot), "tokens_per_s": {"value": 4800.0},
    } | changes  # fmt: skip


REPORT = {
    "runs": [
        line("24/28/quiet", "vllm", 0.02, latencies=figures(0.01, 0.02)),
        line("24/28/quiet", "dualpace", 0.005),
        line("24/0/shared", "dualpace", 0.005, energy=None),
        line("24/0/shared", "vllm", 0.006),
        line("256c/0/shared", "vllm", 0.01),
        line("24/28/stopped", "dualpace", 0.005, latencies={}, succeeded=0),
    ]
}


def test_the_page_has_a_line_a_run_with_intervals_where_there_are_any():
    *_, quiet, busy, vllm, stopped_, clients = side_page.runs(REPORT).strip().splitlines()
    assert quiet == "| 24 | 0 | vLLM | busy cores | 1,000 | 2 | 6.0 | 6.0 | 6.0 | 6.0 | 6.0 | 4,800 | 0.500 |"
    assert "frontend on quiet ones" in busy
    assert "20.0 | 20.0 [10.0, 40.0]" in vllm
    assert stopped_.count(" - ") == 5
    assert clients.startswith("| 256 clients | 0 | vLLM |")


def test_ratios_are_of_cells_that_both_were_measured_in():
    _, _, quiet, busy = side_page.ratios(REPORT).strip().splitlines()
    assert quiet == "| 24/0/shared | 1.20 | 1.20 | 1.20 | 1.20 | 1.00 | - |"
    assert busy == "| 24/28/quiet | 4.00 | 4.00 | 4.00 | 4.00 | 1.00 | 1.00 |"


def test_the_plot_starts_from_the_quiet_machine():
    drawn = side_page.drawn(REPORT)
    assert "vLLM, quiet: 20.00 ms beside 28 threads" in drawn
    assert "vLLM, quiet: 6.00 ms beside 0 threads" in drawn
    assert "stopped" not in drawn


def test_the_page_has_the_tables_that_the_figures_go_into():
    text = side_page.PAGE.read_text(encoding="utf-8")
    assert [table.first for table in side_page.TABLES if f"\n| {table.first} |" not in text] == []
