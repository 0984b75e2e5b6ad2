"""The GPU engine as its users have it: over HTTP, with processes that die and kernels that trap."""

import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import openai
import pytest
from openai import OpenAI

from dualpace.build import bundle as bundles
from dualpace.engine.ring import Finish, FrontendRing, SamplingParams
from dualpace.plan import abi
from dualpace.plan.manifest import HOST_RING, read_manifest
from dualpace.plan.resolve import resolve
from dualpace.render.sources import render
from dualpace.spec.models import Spec
from tests.e2e.appliance import engine_of, serving, wait_until_healthy

from .conftest import Silent

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(60)]

SPEC = {
    "name": "small",
    "model": {
        "dtype": "bf16",
        "weights": {"random": 0},
        "shape": {
            "family": "llama",
            "layers": 4,
            "hidden": 512,
            "heads": 8,
            "kv_heads": 2,
            "head_dim": 64,
            "intermediate": 1024,
            "vocab": 1024,
            "context": 32_768,
        },
    },
    "attention": {"page_size": 16},
    "scheduler": {"max_batch": 16, "prefill_chunk": 128, "park_after": "500ms"},
    "nic": {"rings": 2},
    "target": {"gpu": "h200", "kv_budget": "256MiB"},
    "serving": {"drain": "20s"},
}
TRAP = 1000
# Shorter than a page, so that no run of it is computed from KV that another one left.
PROMPT = list(range(12))
LONG = 30_000
SECONDS = 20


@pytest.fixture(scope="module")
def bundle(tmp_path_factory, store):
    """A small model on which a step traps whose prompts include one that begins with TRAP."""
    line = "load(table + int64_t{step->token[token]} * cfg::kHidden + offset, x);"

    def trapping(plan):
        sources = dict(render(plan))
        text = sources["cuda/pointwise.cu"]
        assert text.count(line) == 1
        trap = f"if (step->token[token] == {TRAP} && step->position[token] == 0) __trap();"
        sources["cuda/pointwise.cu"] = text.replace(line, f"{trap}\n    {line}")
        return sources

    folder = tmp_path_factory.mktemp("serve")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bundles, "render", trapping)
        bundles.build(resolve(Spec.model_validate(SPEC), folder), folder / "bundle", store, Silent())
    return folder / "bundle"


@pytest.fixture(scope="module")
def served(bundle):
    with serving(bundle) as served:
        yield served


def client_of(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)


def complete(client: OpenAI, prompt: list[int], **options) -> str:
    arguments = {"temperature": 0, "max_tokens": 64} | options
    return client.completions.create(model="small", prompt=prompt, **arguments).choices[0].text


def stream(client: OpenAI, prompt: list[int], tokens: int) -> Iterator:
    return iter(client.completions.create(model="small", prompt=prompt, max_tokens=tokens, temperature=0, stream=True))


def text_of(chunks) -> str:
    return "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)


def test_streamed_text_equals_unstreamed_text_and_has_all_its_tokens(served):
    client = client_of(served.url)
    whole = complete(client, PROMPT, max_tokens=500)
    assert len(whole.split()) == 500
    assert text_of(stream(client, PROMPT, 500)) == whole


def test_seeded_samples_and_logprobs_come_over_http(served):
    client = client_of(served.url)
    sampled = {"temperature": 1, "seed": 3, "max_tokens": 32}
    assert complete(client, PROMPT, **sampled) == complete(client, PROMPT, **sampled)
    assert complete(client, PROMPT, **sampled) != complete(client, PROMPT, **(sampled | {"seed": 4}))
    logprobs = (
        client.completions.create(model="small", prompt=PROMPT, max_tokens=4, temperature=0, logprobs=2, echo=True)
        .choices[0]
        .logprobs
    )
    assert len(logprobs.token_logprobs) == len(PROMPT) + 4
    for own, top in list(zip(logprobs.token_logprobs, logprobs.top_logprobs, strict=True))[-4:]:
        assert own == max(top.values())


def test_many_clients_at_once_each_get_an_answer(served):
    lengths: dict[int, int] = {}

    def ask(number: int) -> None:
        client = client_of(served.url)
        lengths[number] = len(complete(client, [number] * (1 + 37 * number % 700), max_tokens=1 + number).split())

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(64)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    assert lengths == {number: 1 + number for number in range(64)}


def test_sigterm_lets_running_requests_finish_and_ends_cleanly(bundle):
    with serving(bundle) as served:
        client = client_of(served.url)
        running = stream(client, PROMPT, 4000)
        next(running)
        served.process.send_signal(signal.SIGTERM)
        rest = list(running)
        assert rest[-1].choices[0].finish_reason == "length"
        assert len(text_of(rest).split()) > 3000
        assert served.process.wait(timeout=SECONDS) == 0
        with pytest.raises(openai.APIConnectionError):
            client.models.list()


@pytest.mark.parametrize("death", ["killed", "trapped"])
def test_an_engine_that_dies_ends_streams_with_an_error_and_another_takes_its_place(death, bundle):
    with serving(bundle) as served:
        client = client_of(served.url)
        before = complete(client, PROMPT)
        running = stream(client, PROMPT, LONG)
        next(running)
        if death == "killed":
            os.kill(engine_of(served.process.pid), signal.SIGKILL)
        else:
            with pytest.raises(openai.APIStatusError):
                complete(client, [TRAP, *PROMPT])
        with pytest.raises(openai.APIError):
            list(running)
        wait_until_healthy(served.url)
        assert complete(client, PROMPT) == before
        said = "".join(served.said)
        how = "was ended by SIGKILL" if death == "killed" else "ended with exit status 1"
        assert f"dualpace.engine {how}; starting it again\n" in said
        assert death == "killed" or "engine: a kernel has failed: CUDA_ERROR_" in said


@contextmanager
def started(module: str, bundle: Path, rings: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", module, bundle, "--rings", rings, *arguments]
    with subprocess.Popen(command) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(condition) -> None:
    deadline = time.monotonic() + 3 * SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def frontend(bundle: Path, rings: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A frontend of ring 0 and its URL."""
    file = rings.with_name("port")
    file.unlink(missing_ok=True)
    with started("dualpace.appliance.server", bundle, rings, "--port", "0", "--port-file", str(file)) as process:
        wait_until(lambda: file.exists() and file.read_text().endswith("\n"))
        url = f"http://127.0.0.1:{file.read_text().strip()}"
        wait_until_healthy(url)
        yield process, url


def test_a_device_that_has_parked_is_woken_by_the_next_request_and_can_be_stopped(bundle):
    plan = read_manifest(bundle).plan
    with TemporaryDirectory(dir="/dev/shm") as folder:
        rings = Path(folder) / "rings"
        with started("dualpace.engine", bundle, rings) as process:
            wait_until(rings.exists)
            ring = FrontendRing(bundle / HOST_RING, rings)
            wait_until(lambda: ring.status().ready)
            with rings.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
                doorbell = abi.view("RingMemory", plan).doorbell.offset

                def parked() -> bool:
                    return memory[doorbell] == 1

                def answer() -> list[int]:
                    assert ring.submit(1, PROMPT, SamplingParams(max_tokens=20, temperature=0.0))
                    events = []
                    while not events or events[-1].finish is Finish.NONE:
                        events += ring.wait(SECONDS)
                    return [event.token for event in events]

                first = answer()
                for _ in range(3):
                    wait_until(parked)
                    beats = {ring.status().heartbeat}
                    wait_until(lambda beats=beats: len(beats | {ring.status().heartbeat}) > 1)
                    assert parked()
                    assert answer() == first
                wait_until(parked)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=SECONDS) == 0
            assert ring.status().stopped
            ring.close()


def test_a_client_that_goes_or_a_frontend_that_is_killed_leaves_nothing_and_another_takes_its_ring(bundle):
    with TemporaryDirectory(dir="/dev/shm") as folder:
        rings = Path(folder) / "rings"
        with started("dualpace.engine", bundle, rings):
            wait_until(rings.exists)
            watcher = FrontendRing(bundle / HOST_RING, rings, ring=1)

            def at_rest() -> bool:
                status = watcher.status()
                return status.running == status.waiting == 0 and status.free_pages == status.total_pages

            with frontend(bundle, rings) as (process, url):
                before = complete(client_of(url), PROMPT)
                running = client_of(url).completions.create(
                    model="small", prompt=PROMPT, max_tokens=LONG, temperature=0, stream=True
                )
                next(iter(running))
                running.close()
                wait_until(lambda: at_rest() and watcher.status().aborted == 1)
                running = stream(client_of(url), PROMPT, LONG)
                next(running)
                assert not at_rest()
                process.kill()
                with pytest.raises((openai.APIError, OSError)):
                    list(running)
            wait_until(at_rest)
            with frontend(bundle, rings) as (_, url):
                assert complete(client_of(url), PROMPT) == before
                with urllib.request.urlopen(f"{url}/health") as response:
                    assert json.load(response)["status"] == "ok"
            watcher.close()
