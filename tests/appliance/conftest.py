import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
import uvicorn

from dualpace.appliance.app import create_app
from dualpace.appliance.deployment import Deployment, load
from dualpace.appliance.dispatch import Dispatcher
from dualpace.appliance.server import configuration, listen
from dualpace.appliance.spouts import Spouts
from dualpace.appliance.tally import Tally

from .bundles import ring_library, write_bundle
from .fake_ring import FakeRing

ServeToy = Callable[..., "Frontend"]


@dataclass
class Frontend:
    """A frontend that listens, the ring behind it, and clients of both kinds."""

    deployment: Deployment
    dispatcher: Dispatcher
    ring: FakeRing
    address: tuple[str, int]
    http: httpx.Client
    openai: openai.OpenAI

    def encode(self, text: str) -> list[int]:
        return self.deployment.tokenizer.encode(text)


@contextmanager
def _serve(bundle: Path, library: Path, ring: FakeRing, send_buffer: int = 0) -> Iterator[Frontend]:
    deployment = load(bundle)
    tally = Tally()
    dispatcher = Dispatcher(ring, deployment.plan.schedule, tally=tally, spouts=Spouts(library, tally))
    listener = listen("127.0.0.1", 0)
    if send_buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    server = uvicorn.Server(configuration(create_app(deployment, dispatcher), drain=0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_for(lambda: server.started)
        url = "http://{}:{}".format(*listener.getsockname())
        key = deployment.api_keys[0].key.decode() if deployment.api_keys else "none"
        with (
            httpx.Client(base_url=url, timeout=10) as http,
            openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=10) as client,
        ):
            yield Frontend(deployment, dispatcher, ring, listener.getsockname(), http, client)
    finally:
        server.should_exit = True
        thread.join(10)


def wait_for(condition: Callable[[], Any], seconds: float = 5) -> None:
    """Wait until `condition` holds, and fail if it does not come about."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not come about in time"
        time.sleep(0.005)


@pytest.fixture(scope="session")
def library(request: pytest.FixtureRequest) -> Path:
    """The ring library, compiled as a bundle's is."""
    return ring_library(request.config.cache.mkdir("dualpace-store"))


@pytest.fixture
def serve(tmp_path: Path, library: Path) -> Iterator[ServeToy]:
    """Starts a frontend over its own bundle: `serve(ring, **bundle_options)`."""
    with ExitStack() as stack:

        def start(ring: FakeRing | None = None, send_buffer: int = 0, **options: Any) -> Frontend:
            bundle = write_bundle(tmp_path / "bundle", **options)
            return stack.enter_context(_serve(bundle, library, ring or FakeRing(), send_buffer))

        yield start


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory, library: Path) -> Iterator[Frontend]:
    """One frontend for tests that leave nothing behind."""
    with _serve(write_bundle(tmp_path_factory.mktemp("toy") / "bundle"), library, FakeRing()) as frontend:
        yield frontend
