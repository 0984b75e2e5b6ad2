"""Bundle to container image, by whatever container engine speaks Docker's API."""

import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualpace.build.context import WEIGHTS, context
from dualpace.build.errors import BuildError
from dualpace.build.progress import Progress
from dualpace.build.store import Store, digest
from dualpace.build.wheels import fetch_wheels
from dualpace.files import file_digest
from dualpace.frozen import Frozen
from dualpace.plan.manifest import Manifest
from dualpace.plan.plan import Plan

if TYPE_CHECKING:
    from docker import DockerClient

REPOSITORY = "dualpace-appliance"
COMPILE_BASE = "python:3.11-bookworm"
RUNTIME_BASE = {"cpu": "debian:bookworm-slim", "cuda": "nvidia/cuda:13.0.2-base-ubuntu24.04"}
_CONNECT_SECONDS = 5
# Between two messages of the engine: installing the packages is one step.
_SILENCE_SECONDS = 1800
_STEP_CHARACTERS = 60
_STEP = re.compile(r"Step (\d+)/(\d+) : (.*)")


class Options(Frozen):
    """How an image is made. Bases that are "" are the target's own; `cache` allows layers that the engine has."""

    repository: str = REPOSITORY
    compile_base: str = ""
    runtime_base: str = ""
    bake_weights: bool = False
    cache: bool = True


class NoEngineError(BuildError):
    """There is nothing to build images with."""


def connect() -> "DockerClient":
    """The engine of DOCKER_HOST, or the one at the usual socket. Raises NoEngineError."""
    try:
        import docker
    except ImportError as error:
        raise NoEngineError("building an image needs docker's package: run `pip install 'dualpace[image]'`") from error
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=_CONNECT_SECONDS)
        client.ping()
    except (DockerException, OSError) as error:
        raise NoEngineError(
            "no container engine answers: start one, name it with DOCKER_HOST, or build with --no-image"
        ) from error
    client.api.timeout = _SILENCE_SECONDS
    return client


@contextmanager
def _complaints() -> Iterator[None]:
    """Make what the engine's client raises a BuildError."""
    from docker.errors import DockerException

    try:
        yield
    except DockerException as error:
        raise BuildError(f"the engine says: {getattr(error, 'explanation', None) or error}") from error


@_complaints()
def build_image(
    client: "DockerClient", spec: Path, bundle: Path, manifest: Manifest, options: Options, store: Store,
    progress: Progress,
) -> tuple[str, ...]:  # fmt: skip
    """Build the image of `bundle`, made of the spec at `spec`, and return its names. Raises BuildError."""
    weights = _weights_to_bake(manifest) if options.bake_weights else None
    target = manifest.plan.target
    bases = {
        "COMPILE_BASE": options.compile_base or COMPILE_BASE,
        "RUNTIME_BASE": options.runtime_base or RUNTIME_BASE[target.kind],
    }
    for argument, base in bases.items():
        _have(client, base, argument, progress)
    wheels = fetch_wheels(target.kind, store, progress)
    progress.step("send the image's context")
    name = f"{options.repository}:{manifest.plan.name}"
    said = labels(spec, manifest, baked=weights is not None) | _base_labels(client, bases["RUNTIME_BASE"])
    messages = client.api.build(
        fileobj=context(bundle, manifest, wheels, weights, said),
        custom_context=True,
        tag=name,
        buildargs=bases | {"PORT": str(published_port(manifest.plan))},
        network_mode="none",
        nocache=not options.cache,
        rm=True,
        forcerm=True,
        decode=True,
    )
    for message in _checked(messages):
        if step := _STEP.match(message.get("stream", "")):
            progress.step(f"image, step {step[1]} of {step[2]}: {step[3][:_STEP_CHARACTERS]}")
    client.api.tag(name, options.repository, "latest")
    return name, f"{options.repository}:latest"


def published_port(plan: Plan) -> int:
    """The port that containers listen at. Raises BuildError if it is another at every start."""
    if plan.serving.port == 0:
        raise BuildError(
            "serving.port 0 takes another port at every start, and a container's has to be known: write a port",
            "serving.port",
        )
    return plan.serving.port


def run_line(manifest: Manifest, name: str, *, baked: bool) -> str:
    """The command that runs the image `name`."""
    plan, weights = manifest.plan, manifest.weights
    port = published_port(plan)
    options = [f"-p {port}:{port}"]
    options += ["--gpus all"] if plan.target.kind == "cuda" else []
    options += [f"-v {weights.folder}:{WEIGHTS}:ro"] if weights and not baked else []
    return f"docker run --rm {' '.join(options)} {name}"


@_complaints()
def push(client: "DockerClient", names: tuple[str, ...], progress: Progress) -> None:
    """Push images by name, with the credentials that the engine's client has. Raises BuildError."""
    for name in names:
        repository, _, tag = name.rpartition(":")
        for message in _checked(client.api.push(repository, tag, stream=True, decode=True)):
            if status := message.get("status"):
                progress.step(f"push {name}: {status} {message.get('progress', '')}".rstrip())


def labels(spec: Path, manifest: Manifest, *, baked: bool) -> dict[str, str]:
    """What the image says of itself: spec, plan and bundle by hash, and what it is compiled for."""
    plan = manifest.plan
    return {
        "org.opencontainers.image.title": plan.name,
        "org.opencontainers.image.version": manifest.version,
        "org.opencontainers.image.description": f"{plan.serving.model_name} on {plan.target.name}, by DualPace",
        "dualpace.spec.sha256": file_digest(spec),
        "dualpace.plan.sha256": digest([plan.model_dump_json()]),
        "dualpace.bundle.digest": manifest.digest,
        "dualpace.target": plan.target.name,
        "dualpace.sm": plan.target.sm,
        "dualpace.weights": "none" if manifest.weights is None else "baked" if baked else WEIGHTS,
        "dualpace.stop-seconds": f"{stop_seconds(plan):g}",
    }


def _base_labels(client: "DockerClient", base: str) -> dict[str, str]:
    """What the image stands on, whose packages its system has: `base`, and its digest if it came from a registry."""
    digests = client.images.get(base).attrs.get("RepoDigests") or []
    prefix = "org.opencontainers.image.base"
    return {f"{prefix}.name": base} | {f"{prefix}.digest": known.partition("@")[2] for known in digests[:1]}


def stop_seconds(plan: Plan) -> float:
    """How long a container may take to stop: draining, and three seconds for farewells."""
    return plan.serving.drain + 3


def _have(client: "DockerClient", base: str, argument: str, progress: Progress) -> None:
    """Pull `base` unless the engine has it."""
    from docker.errors import ImageNotFound
    from docker.utils import parse_repository_tag

    try:
        client.images.get(base)
    except ImageNotFound:
        progress.step(f"pull {base}")
        repository, tag = parse_repository_tag(base)
        try:
            with _complaints():
                messages = client.api.pull(repository, tag or "latest", stream=True, decode=True)
                deque(_checked(messages), maxlen=0)
        except BuildError as error:
            option = "--" + argument.lower().replace("_", "-")
            raise BuildError(
                f"{base} is not here and cannot be pulled: load it, or name another base with {option}; {error}"
            ) from error


def _weights_to_bake(manifest: Manifest) -> Path:
    if manifest.weights is None or not manifest.weights.files:
        raise BuildError(f"{manifest.plan.name} has no checkpoint here to bake in: build without --bake-weights")
    return Path(manifest.weights.folder)


def _checked(messages: Any) -> Iterator[dict[str, Any]]:
    """The engine's messages; its complaint becomes a BuildError with what it wrote last."""
    written: list[str] = []
    for message in messages:
        written.append(message.get("stream", ""))
        if "error" in message:
            raise BuildError(f"the engine says: {message['error'].strip()}", output="".join(written[-20:]))
        yield message
