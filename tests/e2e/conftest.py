"""The real line: the quickstart spec, built into a store of its own and served as a user would serve it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.e2e.appliance import Served, serving
from tests.e2e.tiny import build_tiny

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    subprocess.run([sys.executable, ROOT / "scripts" / "quickstart_model.py"], check=True)
    output = tmp_path_factory.mktemp("e2e") / "quickstart.bundle"
    command = [sys.executable, "-m", "dualpace.cli", "build", ROOT / "specs" / "quickstart.yaml", "-o", output]
    subprocess.run([*command, "--no-image"], check=True)
    return output


@pytest.fixture(scope="session")
def appliance(bundle: Path) -> Iterator[Served]:
    with serving(bundle) as served:
        yield served


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    return build_tiny(tmp_path_factory.mktemp("tiny"), request.config.cache.mkdir("dualpace-store"))


@pytest.fixture(scope="session")
def tiny(tiny_bundle: Path) -> Iterator[Served]:
    """A running appliance on the CPU engine: a random model, whose every answer comes at once."""
    with serving(tiny_bundle) as served:
        yield served


@pytest.fixture
def client(appliance: Served) -> OpenAI:
    return OpenAI(base_url=f"{appliance.url}/v1", api_key="none", max_retries=0)
