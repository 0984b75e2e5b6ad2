"""The image serves the real model, sealed off from every network or over a published port, until it is stopped."""

import json
import math
import signal
import threading
import time
from collections.abc import Iterator

import openai
import pytest
from docker.models.containers import Container
from openai import OpenAI

from tests.container.conftest import Runner, healthy, patience, wait_for

pytestmark = [pytest.mark.model, pytest.mark.timeout(1800)]

MODEL = "quickstart"
PROMPT = "Paris is the capital of"
STOP_SECONDS = 10  # docker's own patience before it kills


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
        assert {uid for uid, _ in container.top(ps_args="-eo uid,pid")["Processes"]} == {"12345"}


def health_of(container: Container) -> str:
    container.reload()
    return container.attrs["State"]["Health"]["Status"]


@pytest.fixture
def published(runner: Runner) -> Iterator[tuple[Container, OpenAI]]:
    ports = {"8000/tcp": ("127.0.0.1", 0)}
    with runner.started(network_mode="bridge", ports=ports) as container:
        wait_for(container, lambda: healthy(container))
        container.reload()
        port = container.attrs["NetworkSettings"]["Ports"]["8000/tcp"][0]["HostPort"]
        yield container, OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


def test_over_a_published_port_it_completes_streams_and_drains(published: tuple[Container, OpenAI]) -> None:
    container, client = published
    completion = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=4, temperature=0)
    assert completion.choices[0].text.startswith(" France")

    short, long = (
        iter(client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=count, temperature=0.8, seed=1,
                                       stream=True, extra_body={"ignore_eos": True}))
        for count in (24, 6000)
    )  # fmt: skip
    next(short), next(long)
    begin, limit = time.monotonic(), STOP_SECONDS * patience()
    stopping = threading.Thread(target=container.stop, kwargs={"timeout": math.ceil(limit)})
    stopping.start()
    # What can end while it drains does; what cannot is told so.
    assert [*short][-1].choices[0].finish_reason == "length"
    with pytest.raises(openai.APIError, match="shutting down"):
        list(long)
    stopping.join()
    assert time.monotonic() - begin < limit
    container.reload()
    assert container.attrs["State"]["ExitCode"] == 0


def test_it_stops_at_once_while_it_starts(runner: Runner) -> None:
    with runner.started() as container:
        container.stop(timeout=60)
        container.reload()
        # By the signal, or drained if it had come that far; not killed.
        assert container.attrs["State"]["ExitCode"] in (0, 128 + signal.SIGTERM)
