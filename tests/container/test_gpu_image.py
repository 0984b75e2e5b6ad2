"""The image of a spec for a GPU: built where there is none, it says by name what it lacks.

Its packages are those of the CPU's image. The real ones are 2.6 GB of wheels, of which nothing runs here.
"""

import io
from pathlib import Path

import pytest
from docker import DockerClient
from typer.testing import CliRunner

from dualpace.build.wheels import fetch_wheels
from dualpace.cli import app
from dualpace.exits import Exit
from dualpace.plan.manifest import CUDA_CUBINS, read_manifest
from tests.container.conftest import ROOT, Builder, Runner
from tests.container.test_image import COMPILERS, SOURCES
from tests.container.test_refusals import BUNDLE, refused
from tests.launch.machines import DRIVER, H200, fake_driver

pytestmark = pytest.mark.timeout(1800)

IMAGE = "gpu-appliance"
# Where some clusters put the driver; NVIDIA's bases name it.
LIBRARIES = "/usr/local/nvidia/lib64"


@pytest.fixture(scope="module")
def gpu(client: DockerClient, image: str, builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """The quickstart's model on an H200."""
    text = (ROOT / "specs" / "quickstart.yaml").read_text()
    for before, after in (("../models", str(ROOT / "models")), ("cpu: true\n  kv_budget: 512MiB", "gpu: h200")):
        assert before in text
        text = text.replace(before, after)
    folder = tmp_path_factory.mktemp("gpu")
    spec, bundle = folder / "gpu.yaml", folder / "bundle"
    spec.write_text(text)
    compile_base, runtime_base = builder.bases
    base = f"FROM {runtime_base}\nENV LD_LIBRARY_PATH={LIBRARIES}\n"
    client.images.build(fileobj=io.BytesIO(base.encode()), tag="base:cuda", rm=True)
    bases = ["--compile-base", compile_base, "--runtime-base", "base:cuda"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", builder.engine.address)
        patch.setattr("dualpace.build.image.fetch_wheels", lambda kind, *where: fetch_wheels("cpu", *where))
        ended = CliRunner().invoke(app, ["build", str(spec), "--image", IMAGE, "-o", str(bundle), *bases])
    assert ended.exit_code == 0, ended.stderr
    assert "--gpus all" in ended.stdout
    weights = read_manifest(bundle).weights
    assert weights
    return Runner(client, IMAGE, Path(weights.folder))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    """A driver that shows the GPU which the environment describes."""
    folder = fake_driver(tmp_path_factory.mktemp("driver"))
    return {folder / name: f"{LIBRARIES}/{name}" for name in DRIVER}


def test_it_has_the_kernels_compiled_and_no_compiler(gpu: Runner) -> None:
    labels = gpu.client.images.get(IMAGE).labels
    assert (labels["dualpace.target"], labels["dualpace.sm"]) == ("h200", "90a")
    kernels = " ".join(f"{BUNDLE}/{cubin}" for cubin in CUDA_CUBINS)
    assert gpu.ended("-c", f"ls {kernels}; {COMPILERS}; {SOURCES}", entrypoint="sh", volumes={}) == (
        0,
        "".join(f"{BUNDLE}/{cubin}\n" for cubin in CUDA_CUBINS),
    )


def test_without_a_driver_it_asks_for_a_gpu(gpu: Runner) -> None:
    assert refused(gpu, Exit.HARDWARE) == (
        f"dualpace: {BUNDLE} is built for h200 and this machine shows no NVIDIA GPU: serve it on one that has it "
        "(a container needs `--gpus all`), or build a spec with `cpu: true` in its target"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"FAKE_SM": "80"}, f"{BUNDLE} is compiled for sm_90a (h200) and NVIDIA H100 is sm_80: build the spec"),
        ({"FAKE_DRIVER": "12080"}, f"the NVIDIA driver speaks CUDA 12.8, {BUNDLE} needs 13.0: install a newer driver"),
        ({"FAKE_MEMORY": str(1 << 29)}, "MiB of GPU memory and NVIDIA H100 has 512: build the spec"),
        ({"FAKE_FREE": str(1 << 29)}, "512 of 143360 MiB are free: end what else uses the GPU"),
        ({"FAKE_COUNT": "0"}, "this machine shows no NVIDIA GPU: serve it on one that has it"),
    ],
)
def test_another_gpu_or_driver_is_refused(
    gpu: Runner, driver: dict[Path, str], changes: dict[str, str], said: str
) -> None:
    assert said in refused(gpu, Exit.HARDWARE, driver, environment=H200 | changes)


def test_on_the_gpu_that_it_is_for_it_goes_on_to_its_weights(gpu: Runner, driver: dict[Path, str]) -> None:
    volumes = {str(path): {"bind": target, "mode": "ro"} for path, target in driver.items()}
    said = refused(gpu, Exit.WEIGHTS, environment=H200, volumes=volumes)
    assert said.startswith("dualpace: /weights/model.safetensors is missing: mount the checkpoint")
