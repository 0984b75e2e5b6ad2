"""An image goes to a registry and a base comes from one, as `--push` and `build` do it."""

import io
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker import DockerClient

from dualpace.build import image
from dualpace.build.errors import BuildError
from tests.build.conftest import Said
from tests.container.conftest import missing

REGISTRY = "docker-registry"
CONFIGURATION = """\
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}}}}}
http: {{addr: "127.0.0.1:{port}"}}
log: {{level: error}}
"""
START_SECONDS = 20


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """The address of a registry on this machine, which engines ask without TLS."""
    if shutil.which(REGISTRY) is None:
        missing(f"{REGISTRY} is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    configuration = tmp_path / "registry.yml"
    configuration.write_text(CONFIGURATION.format(folder=tmp_path / "registry", port=port))
    with subprocess.Popen([REGISTRY, "serve", configuration], stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(f"http://127.0.0.1:{port}/v2/")
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(url).close()
            return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_both_names_are_pushed_and_a_base_is_pulled_by_name_or_digest(client: DockerClient, registry: str) -> None:
    said, names = Said(), (f"{registry}/appliance:quickstart", f"{registry}/appliance:latest")
    client.images.build(fileobj=io.BytesIO(b"FROM scratch\nLABEL a=b\n"), tag=names[0])
    client.api.tag(names[0], f"{registry}/appliance", "latest")
    image.push(client, names, said)
    digest = client.images.get(names[0]).attrs["RepoDigests"][0]
    assert digest.startswith(f"{registry}/appliance@sha256:")
    for name in names:
        client.images.remove(name)
    for base in (names[0], digest):
        image._have(client, base, "RUNTIME_BASE", said)
        assert image._base_labels(client, base)["org.opencontainers.image.base.digest"] == digest.partition("@")[2]
        client.images.remove(base)


def test_a_base_that_a_registry_has_not_is_named_with_the_option(client: DockerClient, registry: str) -> None:
    base = f"{registry}/none:1"
    said = (
        f"{base} is not here and cannot be pulled: load it, or name another base with --runtime-base; the engine says: "
    )
    with pytest.raises(BuildError, match=f"^{said}.*not found") as failed:
        image._have(client, base, "RUNTIME_BASE", Said())
    assert "\n" not in str(failed.value)


def test_a_name_that_no_image_can_have_is_what_the_engine_says(client: DockerClient) -> None:
    with pytest.raises(BuildError, match=r"^the engine says: .*must be lowercase"):
        image.push(client, ("NotAllowed:latest",), Said())
