"""What an image is built from, and what is said where none can be built."""

import io
import re
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from docker.errors import APIError, ImageNotFound
from typer.testing import CliRunner

from dualpace.build import image
from dualpace.build.context import API_KEYS, BUNDLE, TLS, WEIGHTS, context
from dualpace.build.errors import BuildError
from dualpace.cli import app
from dualpace.cli import build as command
from dualpace.exits import Exit
from dualpace.plan.manifest import MANIFEST, Manifest, read_manifest
from tests.launch.machines import bundle_of, checkpoint
from tests.plans import SPECS, example


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    plan = example("quickstart", serving={"api_key_file": "keys.txt", "tls": {"certificate": "a.crt", "key": "a.key"}})
    return bundle_of(plan, tmp_path / "quickstart.bundle", checkpoint(tmp_path / "weights"))


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "a.whl").write_bytes(b"wheel")
    return folder


def members(bundle: Path, wheels: Path, weights: Path | None = None) -> dict[str, bytes]:
    archive = b"".join(context(bundle, read_manifest(bundle), wheels, weights, {"a.b": 'c "d"'}))
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        files = {member.name: opened.extractfile(member) for member in opened if member.isfile()}
        return {name: file.read() for name, file in files.items() if file}


def test_a_context_is_the_same_bytes_every_time(bundle, wheels):
    first, second = (b"".join(context(bundle, read_manifest(bundle), wheels, None, {"a": "b"})) for _ in range(2))
    assert first == second


def test_a_context_has_what_serves_and_no_template_or_weight(bundle, wheels):
    names = members(bundle, wheels).keys()
    assert {"Dockerfile", "stage.py", "wheels/a.whl", f"bundle/{MANIFEST}", "app/bin/dualpace"} <= names
    assert {"app/dualpace/appliance/app.py", "app/dualpace/engine/serve.py", "app/dualpace/cli/health.py"} <= names
    assert members(bundle, wheels)["Dockerfile"].decode().endswith('\nLABEL a.b="c \\"d\\""\n')
    assert not [
        name for name in names if "templates/" in name or "__pycache__" in name or name.startswith("checkpoint/")
    ]


def test_weights_are_in_a_context_that_bakes_them_in(bundle, wheels, tmp_path):
    assert members(bundle, wheels, tmp_path / "weights")["checkpoint/weights/model.safetensors"] == b"weights"


def test_an_image_finds_weights_and_keys_where_they_are_mounted_and_says_nothing_of_this_machine(
    bundle, wheels, tmp_path
):
    text = members(bundle, wheels)[f"bundle/{MANIFEST}"].decode()
    manifest, original = Manifest.model_validate_json(text), read_manifest(bundle)
    assert manifest.weights
    assert original.weights
    assert (manifest.weights.folder, manifest.weights.files) == (WEIGHTS, original.weights.files)
    serving = manifest.plan.serving
    assert (serving.api_key_file, serving.tls_key) == (API_KEYS, f"{TLS}/tls.key")
    assert manifest.digest == original.digest
    assert str(tmp_path) not in text
    assert "/nowhere" not in text


def test_a_file_that_is_gone_fails_the_context(bundle, wheels, tmp_path):
    (tmp_path / "weights" / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError):
        members(bundle, wheels, tmp_path / "weights")


def test_the_dockerfile_has_the_bundle_where_the_manifest_is_read():
    text = (SPECS.parent / "Dockerfile").read_text()
    assert f"DUALPACE_BUNDLE={BUNDLE}" in text
    assert "COPY checkpoint/ /\n" in text


def test_the_last_stage_only_copies():
    last = (SPECS.parent / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    instructions = set(re.findall(r"^([A-Z]+) ", last, re.MULTILINE))
    assert "COPY" in instructions
    assert not instructions & {"RUN", "ADD"}


def test_without_an_engine_the_bundle_is_built_and_that_is_said(bundle, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setattr(command, "build_plan", lambda *_: (bundle, read_manifest(bundle)))
    ended = CliRunner().invoke(app, ["build", str(SPECS / "quickstart.yaml")])
    assert ended.exit_code == Exit.USAGE
    assert ended.stderr.splitlines()[-1] == (
        "dualpace: no container engine answers: start one, name it with DOCKER_HOST, or build with --no-image; "
        f"the bundle {bundle} is built"
    )


def test_a_port_that_is_another_at_every_start_is_refused_before_anything_is_built(tmp_path):
    spec = tmp_path / "quickstart.yaml"
    spec.write_text((SPECS / "quickstart.yaml").read_text() + "\nserving:\n  port: 0\n")
    for arguments in (["build", "--store", str(tmp_path / "store")], ["manifest", "-o", str(tmp_path / "manifests")]):
        ended = CliRunner().invoke(app, [*arguments, str(spec)])
        assert ended.exit_code == Exit.FINDINGS
        line = spec.read_text().splitlines().index("  port: 0") + 1
        assert f"{spec}:{line}:9: serving.port 0 takes another port at every start" in ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["quickstart.yaml"]


@pytest.mark.parametrize("option", ["--push", "--bake-weights"])
def test_what_is_asked_of_an_image_is_not_passed_over_where_none_is_built(option, tmp_path):
    arguments = ["build", str(SPECS / "quickstart.yaml"), "--no-image", option, "-o", str(tmp_path / "bundle")]
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == Exit.USAGE
    assert f"{option} is about the image, which --no-image leaves out" in ended.stderr
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("base", "pulled"),
    [
        ("debian", ("debian", "latest")),
        ("python:3.11-bookworm", ("python", "3.11-bookworm")),
        ("registry.example:5000/base", ("registry.example:5000/base", "latest")),
        ("registry.example:5000/a/base:1", ("registry.example:5000/a/base", "1")),
        ("debian@sha256:" + 64 * "0", ("debian", "sha256:" + 64 * "0")),
    ],
)
def test_a_base_is_pulled_by_the_name_that_it_has(said, base, pulled):
    def absent(name: str) -> None:
        raise ImageNotFound(name)

    asked: list[tuple[str, str]] = []
    client = SimpleNamespace(
        images=SimpleNamespace(get=absent),
        api=SimpleNamespace(pull=lambda repository, tag, **_: asked.append((repository, tag)) or [{"status": "Done"}]),
    )
    image._have(client, base, "RUNTIME_BASE", said)
    assert asked == [pulled]


def test_the_line_that_runs_an_image_mounts_its_weights_unless_they_are_in_it(bundle, tmp_path):
    manifest = read_manifest(bundle)
    mounted = f"docker run --rm -p 8000:8000 -v {tmp_path}/weights:/weights:ro a:b"
    assert image.run_line(manifest, "a:b", baked=False) == mounted
    assert image.run_line(manifest, "a:b", baked=True) == "docker run --rm -p 8000:8000 a:b"


def test_no_weights_can_be_baked_in_that_are_not_here(bundle):
    manifest = read_manifest(bundle)
    assert manifest.weights
    absent = manifest.model_copy(update={"weights": manifest.weights.model_copy(update={"files": {}})})
    options = image.Options(bake_weights=True)
    with pytest.raises(BuildError, match="no checkpoint here to bake in: build without --bake-weights"):
        image.build_image(None, SPECS / "quickstart.yaml", bundle, absent, options, None, None)


def test_both_names_are_pushed_and_what_the_registry_refuses_is_said(said):
    def push(repository: str, tag: str, **_: object) -> list[dict[str, str]]:
        pushed.append((repository, tag))
        return [{"status": "Pushing", "progress": "1/2"}, {"error": "denied"} if tag == "refused" else {}]

    pushed: list[tuple[str, str]] = []
    client = SimpleNamespace(api=SimpleNamespace(push=push))
    image.push(client, ("a.example:5000/b:quickstart", "a.example:5000/b:latest"), said)
    assert pushed == [("a.example:5000/b", "quickstart"), ("a.example:5000/b", "latest")]
    assert said.steps[0] == "push a.example:5000/b:quickstart: Pushing 1/2"
    with pytest.raises(BuildError, match=r"^the engine says: denied$"):
        image.push(client, ("a.example:5000/b:refused",), said)


def test_what_the_engines_client_raises_is_what_the_engine_says(bundle):
    def refuse(name: str) -> None:
        raise APIError("500 Server Error for http+docker://...", explanation="invalid reference format")

    client = SimpleNamespace(images=SimpleNamespace(get=refuse))
    options = image.Options(runtime_base="No Name")
    with pytest.raises(BuildError, match=r"^the engine says: invalid reference format$"):
        image.build_image(client, SPECS / "quickstart.yaml", bundle, read_manifest(bundle), options, None, None)


def test_what_the_engine_complains_of_is_the_error_with_what_it_wrote_before():
    messages = [{"stream": "Step 1/2 : RUN false\n"}, {"stream": "no such tool\n"}, {"error": "returned 1\n"}]
    with pytest.raises(BuildError, match=r"^the engine says: returned 1$") as failed:
        list(image._checked(messages))
    assert failed.value.output == "Step 1/2 : RUN false\nno such tool\n"
