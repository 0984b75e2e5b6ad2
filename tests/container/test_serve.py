"""The image serves the real model, sealed off from every network or over a published port, until it is stopped."""

import json
import math
import os
import signal
import threading
import time
from collections.abc import Iterator

import openai
import pytest
from docker.models.containers import Container
from openai import OpenAI

from tests.container.conftest import Runner, healthy, patience, plain, wait_for

pytestmark = [pytest.mark.model, pytest.mark.timeout(1800)]

MODEL = "quickstart"
PROMPT = "Paris is the capital of"
STOP_SECONDS = 10  # docker's own patience before it kills
DRAIN_SECONDS = 8


def test_without_a_network_it_completes_a_prompt(runner: Runner) -> None:
    with runner.started() as container:
        wait_for(container, lambda: healthy(container))
        body = json.dumps({"model": MODEL, "prompt": PROMPT, "max_tokens": 4, "temperature": 0})
        ask = (
            "import sys, urllib.request as r;"
            "q = r.Request('http://127.0.0.1:8000/v1/completions', sys.argv[1].encode(),"
            " {'content-type': 'application/json'});"
            "print(r.urlopen(q).read().decode())"
        )
        answer = container.exec_run(["python3", "-c", ask, body])
        assert json.loads(answer.output)["choices"][0]["text"].startswith(" France")
        wait_for(container, lambda: health_of(container) == "healthy")
        assert users(container) == {"12345"}
        load = ["--workload", "chat:8,4", "--concurrency", "1", "--requests", "2"]
        measured = container.exec_run(["dualpace", "bench", "http://127.0.0.1:8000", *load])
        assert measured.exit_code == 0, measured.output.decode()
        # A GPU or a thread that hangs looks like this: the processes are all there, and no step is made any more.
        (engine,) = (pid for pid, command in processes(container) if "dualpace.engine" in command)
        os.kill(int(engine), signal.SIGSTOP)
        try:
            wait_for(container, lambda: health_of(container) == "unhealthy")
        finally:
            os.kill(int(engine), signal.SIGCONT)
        wait_for(container, lambda: health_of(container) == "healthy")


def users(container: Container) -> set[str]:
    return {uid for uid, _ in container.top(ps_args="-eo uid,pid")["Processes"]}


def processes(container: Container) -> list[tuple[str, str]]:
    """Of each process its number, as this machine has it, and its command."""
    return [(pid, command) for pid, command in container.top(ps_args="-eo pid,args")["Processes"]]


def health_of(container: Container) -> str:
    container.reload()
    return container.attrs["State"]["Health"]["Status"]


@pytest.fixture
def published(runner: Runner) -> Iterator[tuple[Container, OpenAI]]:
    """Run with no option but a port and the weights, as the README has it."""
    ports = {"8000/tcp": ("127.0.0.1", 0)}
    volumes = {str(runner.weights): {"bind": "/weights", "mode": "ro"}}
    with plain(runner.client, runner.image, ports=ports, volumes=volumes) as container:
        wait_for(container, lambda: healthy(container))
        container.reload()
        port = container.attrs["NetworkSettings"]["Ports"]["8000/tcp"][0]["HostPort"]
        yield container, OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def test_over_a_published_port_it_completes_streams_and_drains(published: tuple[Container, OpenAI]) -> None:
    container, client = published
    assert users(container) == {"65532"}
    completion = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=4, temperature=0)
    assert completion.choices[0].text.startswith(" France")

    short, long = (
        iter(client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=count, temperature=0.8, seed=1,
                                       stream=True, extra_body={"ignore_eos": True}))
        for count in (24, 6000)
    )  # fmt: skip
    next(short), next(long)
    begin, more = time.monotonic(), patience()
    stopping = threading.Thread(target=container.stop, kwargs={"timeout": math.ceil(STOP_SECONDS * more)})
    stopping.start()
    # What can end while it drains does; what cannot is told so.
    assert [*short][-1].choices[0].finish_reason == "length"
    with pytest.raises(openai.APIError, match="shutting down"):
        list(long)
    stopping.join()
    assert time.monotonic() - begin < DRAIN_SECONDS * more
    container.reload()
    assert container.attrs["State"]["ExitCode"] == 0


def test_it_stops_at_once_while_it_starts(runner: Runner) -> None:
    with runner.started() as container:
        container.stop(timeout=60)
        container.reload()
        # By the signal, or drained if it had come that far; not killed.
        assert container.attrs["State"]["ExitCode"] in (0, 128 + signal.SIGTERM)
