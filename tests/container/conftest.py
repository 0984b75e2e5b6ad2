"""The quickstart's image, built as a user builds it, in an engine of the tests' own."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest
from docker import DockerClient
from docker.models.containers import Container

from dualpace.plan.manifest import read_manifest
from tests.container.engine import Engine, NoEngineError, engine, import_bases

ROOT = Path(__file__).parents[2]
READY_SECONDS = 300
# Set where a machine without an engine is a failure: in CI.
REQUIRED = "DUALPACE_TEST_CONTAINERS"


def missing(what: str) -> NoReturn:
    """End a test for which something is missing on this machine."""
    (pytest.fail if REQUIRED in os.environ else pytest.skip)(what)


@pytest.fixture(scope="session")
def own_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    try:
        with engine(tmp_path_factory.mktemp("engine") / "engine") as own:
            yield own
    except NoEngineError as error:
        missing(f"no container engine here: {error}")


@pytest.fixture(scope="session")
def client(own_engine: Engine) -> DockerClient:
    return own_engine.client


@pytest.fixture(scope="session")
def bases(client: DockerClient, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return import_bases(client, tmp_path_factory.mktemp("bases"))


@dataclass(frozen=True)
class Builder:
    """Runs `dualpace build` for a spec against the tests' engine."""

    engine: Engine
    bases: tuple[str, str]
    folder: Path
    spec: Path = ROOT / "specs" / "quickstart.yaml"

    def build(self, *options: object, package: Path = ROOT, within: Sequence[str] = ()) -> tuple[str, float]:
        """Build from the package in `package` by the command `within`; what was said, and the seconds it took."""
        compile_base, runtime_base = self.bases
        command = [*within, sys.executable, "-m", "dualpace.cli", "build", self.spec]
        command += ["--compile-base", compile_base, "--runtime-base", runtime_base, "-o", self.bundle, *options]
        environment = os.environ | {"DOCKER_HOST": self.engine.address, "PYTHONPATH": str(package)}
        begin = time.monotonic()
        ended = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stderr, time.monotonic() - begin

    @property
    def bundle(self) -> Path:
        return self.folder / f"{self.spec.stem}.bundle"

    @property
    def weights(self) -> Path:
        weights = read_manifest(self.bundle).weights
        assert weights
        return Path(weights.folder)


@pytest.fixture(scope="session")
def builder(own_engine: Engine, bases: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Builder:
    subprocess.run([sys.executable, ROOT / "scripts" / "quickstart_model.py"], check=True)
    return Builder(own_engine, bases, tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="session")
def image(builder: Builder) -> str:
    builder.build()
    return "dualpace-appliance"


@contextmanager
def plain(client: DockerClient, image: str, *command: str, **options: object) -> Iterator[Container]:
    """A container of `image` with no other options than these."""
    container = client.containers.run(image, list(command), detach=True, **options)
    try:
        yield container
    finally:
        container.remove(force=True)


@dataclass(frozen=True)
class Runner:
    """Runs the image as docs/container.md says: read-only, nobody's user id, no capabilities, weights mounted."""

    client: DockerClient
    image: str
    weights: Path

    @contextmanager
    def started(self, *command: str, **options: object) -> Iterator[Container]:
        defaults: dict[str, object] = {
            "read_only": True,
            "tmpfs": {"/tmp": ""},
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "user": "12345:6789",
            "network_mode": "none",
            "volumes": {str(self.weights): {"bind": "/weights", "mode": "ro"}},
        }
        with plain(self.client, self.image, *command, **(defaults | options)) as container:
            yield container

    def ended(self, *command: str, **options: object) -> tuple[int, str]:
        """The exit code and all that was said by a container that ends by itself."""
        with self.started(*command, **options) as container:
            code = container.wait(timeout=READY_SECONDS)["StatusCode"]
            return code, container.logs().decode()


@pytest.fixture(scope="session")
def runner(client: DockerClient, image: str, builder: Builder) -> Runner:
    return Runner(client, image, builder.weights)


def wait_for(container: Container, condition: Callable[[], bool]) -> None:
    """Wait until `condition`, while `container` runs."""
    deadline = time.monotonic() + READY_SECONDS
    while not condition():
        container.reload()
        assert container.status == "running", container.logs().decode()
        assert time.monotonic() < deadline, container.logs().decode()
        time.sleep(0.3)


def patience() -> float:
    """How many times longer things may take here than where nothing else runs."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def healthy(container: Container) -> bool:
    return bool(container.exec_run(["dualpace", "health"]).exit_code == 0)
