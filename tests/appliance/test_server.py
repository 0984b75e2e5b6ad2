"""The process: how it starts, drains and ends."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2 as httpx
import pytest

from dualpace.appliance.deployment import load
from dualpace.appliance.server import describe

from .bundles import write_bundle
from .conftest import wait_for

ROOT = Path(__file__).parents[2]
StartProcess = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartProcess]:
    """Starts the process with a step time and returns it and its URL, once it serves."""
    with ExitStack() as stack:

        def start(step_s: float = 0.0, **options: object) -> tuple[subprocess.Popen[str], str]:
            bundle = write_bundle(tmp_path / "bundle", **options)
            command = [
                sys.executable,
                "-m",
                "tests.appliance.fake_server",
                str(step_s),
                bundle,
                "--rings",
                tmp_path / "rings",
            ]
            process = stack.enter_context(
                subprocess.Popen(
                    [*command, "--port", "0", "--port-file", tmp_path / "port"],
                    cwd=ROOT,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.kill)
            line = json.loads(process.stderr.readline())
            url = re.search(r"https?://\S+(?=/v1)", line["message"])
            assert url, line
            assert line["message"] == (
                f"serving toy at {url[0]}/v1, context limit 256 tokens, "
                "sampling by default with temperature 0.7, top_p 1, top_k 40, min_p 0, repetition_penalty 1"
            )
            return process, url[0]

        yield start


def refuses_connections(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


def test_the_port_that_it_picked_is_in_the_file_that_was_asked_for(start: StartProcess, tmp_path: Path):
    _, url = start()
    port = tmp_path / "port"
    wait_for(lambda: port.exists() and port.read_text().endswith("\n"))
    assert url.endswith(f":{int(port.read_text())}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_exits_at_once_with_status_0(start: StartProcess, number: signal.Signals):
    process, url = start()
    assert httpx.get(f"{url}/health").status_code == 200
    process.send_signal(number)
    assert process.wait(3) == 0


def test_draining_finishes_what_runs_and_accepts_no_more(start: StartProcess):
    process, url = start(step_s=0.01)
    body = {"model": "toy", "prompt": "hello", "max_tokens": 100, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body) as reply:
        lines = reply.iter_lines()
        next(lines)
        process.terminate()
        wait_for(lambda: refuses_connections(url))
        rest = list(lines)
    assert '"finish_reason":"length"' in "".join(rest)
    assert rest[-2] == "data: [DONE]"
    assert process.wait(3) == 0
    assert "draining" in process.stderr.read()


def test_what_outlasts_the_drain_is_ended_with_an_error_event(start: StartProcess):
    process, url = start(step_s=0.1, drain="300ms")
    body = {"model": "toy", "prompt": "hello", "max_tokens": 200, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body) as reply:
        lines = reply.iter_lines()
        next(lines)
        process.terminate()
        rest = [line for line in lines if line]
    assert "shutting down" in rest[-2]
    assert rest[-1] == "data: [DONE]"
    assert process.wait(3) == 0


def test_a_second_signal_exits_at_once(start: StartProcess):
    process, url = start(step_s=0.1)
    body = {"model": "toy", "prompt": "hello", "max_tokens": 200, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body) as reply:
        next(reply.iter_raw())
        process.terminate()
        wait_for(lambda: refuses_connections(url))
        process.terminate()
        assert process.wait(2) == 128 + signal.SIGTERM


@pytest.mark.parametrize("log", ["errors", "requests", "prompts"])
def test_the_log_is_lines_of_json_and_holds_prompts_only_where_it_is_to(start: StartProcess, log: str):
    process, url = start(log=log)
    for prompt in ("open sesame", ["open sesame", 3]):
        httpx.post(f"{url}/v1/completions", json={"model": "toy", "prompt": prompt, "max_tokens": 2})
    process.terminate()
    assert process.wait(3) == 0
    text = process.stderr.read()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["status"] for line in lines if line["message"] == "request"] == [[200, 400], []][log == "errors"]
    assert ("sesame" in text) == (log == "prompts")
    assert {line["frontend"] for line in lines} == {0}


def test_the_first_line_says_how_the_model_samples_by_default(tmp_path: Path):
    line = describe(load(write_bundle(tmp_path / "bundle", repetition_penalty=1.05)), "::1", 80)
    assert "http://[::1]:80/v1" in line
    assert line.endswith("temperature 0.7, top_p 1, top_k 40, min_p 0, repetition_penalty 1.05")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dualpace.appliance.server", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)


def test_a_folder_that_is_no_bundle_is_refused_in_one_line(tmp_path: Path):
    ended = run(tmp_path, "--rings", tmp_path / "rings")
    assert ended.returncode == 2
    assert ended.stderr.startswith("dualpace: ")
    assert ended.stderr.count("\n") == 1
    assert "dualpace build" in ended.stderr


def test_a_bundle_without_a_ring_library_is_refused_in_one_line(tmp_path: Path):
    ended = run(write_bundle(tmp_path / "bundle"), "--rings", tmp_path / "rings")
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "libring.so" in ended.stderr


def test_rings_in_a_folder_that_cannot_be_written_are_refused_in_one_line(tmp_path: Path):
    ended = run(write_bundle(tmp_path / "bundle"), "--rings", tmp_path / "missing" / "rings")
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "the folder of the rings" in ended.stderr


def test_a_port_in_use_is_refused_with_the_remedy(tmp_path: Path):
    bundle = write_bundle(tmp_path / "bundle")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [sys.executable, "-m", "tests.appliance.fake_server", "0", bundle, "--rings", tmp_path / "rings"]
        port = str(taken.getsockname()[1])
        ended = subprocess.run([*command, "--port", port], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    assert "Address already in use; choose another with --host and --port" in ended.stderr


def test_the_process_loads_neither_torch_nor_numpy_nor_cuda_nor_transformers():
    check = (
        "import sys, dualpace.appliance.server; "
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'torch', 'numpy', 'cuda', 'transformers', 'yaml'}))"
    )
    ended = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert ended.stdout == "[]\n", ended.stderr
