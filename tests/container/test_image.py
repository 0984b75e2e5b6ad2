"""What is in the image, what is not, and what a second build of it does again."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from docker import DockerClient

from dualpace.files import file_digest
from dualpace.plan.manifest import read_manifest
from tests.container.conftest import ROOT, Builder, Runner, patience

pytestmark = pytest.mark.timeout(1800)

SPEC = ROOT / "specs" / "quickstart.yaml"
MOST_BYTES = 1_100_000_000
MOST_REBUILD_SECONDS = 10
COMPILERS = "for tool in cc gcc g++ c++ nvcc as ld make; do command -v $tool; done"
SOURCES = "find /opt/dualpace/app -name '*.cu*' -o -name '*.?pp*'"
WEIGHTS = "find / -xdev -name '*.safetensors' -o -name '*.gguf'"


def layers(client: DockerClient, name: str = "dualpace-appliance") -> list[str]:
    return list(client.images.get(name).attrs["RootFS"]["Layers"])


def test_it_is_small_and_says_what_it_is(client: DockerClient, image: str, builder: Builder) -> None:
    built, manifest = client.images.get(image), read_manifest(builder.bundle)
    assert built.attrs["Size"] < MOST_BYTES
    assert sorted(built.tags) == ["dualpace-appliance:latest", "dualpace-appliance:quickstart"]
    assert built.labels["org.opencontainers.image.title"] == "quickstart"
    assert built.labels["dualpace.spec.sha256"] == file_digest(SPEC)
    assert built.labels["dualpace.bundle.digest"] == manifest.digest
    assert (built.labels["dualpace.target"], built.labels["dualpace.sm"]) == ("cpu", "")
    assert built.labels["dualpace.weights"] == "/weights"
    assert built.labels["dualpace.stop-seconds"] == "10"
    assert built.labels["org.opencontainers.image.base.name"] == "base:runtime"
    configuration = built.attrs["Config"]
    assert configuration["User"] == "65532:65532"
    assert configuration["ExposedPorts"].keys() == {"8000/tcp"}
    assert configuration["Healthcheck"]["Test"] == ["CMD", "dualpace", "health"]
    assert "LD_LIBRARY_PATH=/opt/dualpace/python/lib" in configuration["Env"]


def test_no_compiler_template_or_weight_is_in_it(runner: Runner) -> None:
    look = f"{COMPILERS}; {SOURCES}; {WEIGHTS}"
    assert runner.ended("-c", look, entrypoint="sh", volumes={}, user="root") == (0, "")


@pytest.mark.parametrize("command", ["lint", "plan"])
def test_a_mounted_spec_is_linted_and_planned(runner: Runner, command: str) -> None:
    spec = {str(ROOT / "specs"): {"bind": "/specs", "mode": "ro"}}
    code, said = runner.ended(command, "/specs/llama-3.1-8b-h200.yaml", volumes=spec)
    assert code == 0, said


def test_health_is_an_exit_code(runner: Runner) -> None:
    code, said = runner.ended("health")
    assert (code, said) == (1, "dualpace: nothing is served on this machine yet\n")


def test_an_edit_of_the_http_side_rebuilds_one_layer_and_compiles_nothing(
    client: DockerClient, image: str, builder: Builder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = layers(client)
    edited = tmp_path / "dualpace"
    shutil.copytree(ROOT / "dualpace", edited, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Dockerfile", tmp_path)
    app = edited / "appliance" / "app.py"
    app.write_text(app.read_text() + "\n# edited\n")
    builder.build(package=tmp_path)  # Python compiles the copy to bytecode, and the engine looks at its caches
    app.write_text(app.read_text() + "# again\n")
    said, seconds = builder.build(package=tmp_path)
    after = layers(client)
    assert "compiled" not in said
    assert len(after) == len(before)
    assert after[:-1] == before[:-1]
    assert after[-1] != before[-1]
    with capsys.disabled():
        sys.stdout.write(f"\nrebuilt in {seconds:.1f} s after an edit, with {os.getloadavg()[0]:.1f} running\n")
    assert seconds < MOST_REBUILD_SECONDS * patience()


def test_layers_repeat_bit_for_bit_without_the_cache_and_without_a_network(
    client: DockerClient, image: str, builder: Builder
) -> None:
    builder.build()
    before = layers(client)
    builder.build("--no-cache", within=["unshare", "--net"])
    assert layers(client) == before


def test_weights_are_baked_into_a_layer_of_their_own(client: DockerClient, runner: Runner, builder: Builder) -> None:
    builder.build()
    mounted = layers(client)
    builder.build("--image", "baked", "--bake-weights")
    baked = layers(client, "baked")
    assert [a == b for a, b in zip(mounted, baked, strict=True)].count(False) == 1
    assert client.images.get("baked").labels["dualpace.weights"] == "baked"
    found = "import hashlib; print(hashlib.file_digest(open('/weights/model.safetensors', 'rb'), 'sha256').hexdigest())"
    digest = read_manifest(builder.bundle).weights.files["model.safetensors"].sha256
    sealed = Runner(client, "baked", builder.weights)
    assert sealed.ended("-c", found, entrypoint="python3", volumes={}) == (0, f"{digest}\n")
