"""What an image is built from: the tar archive that is sent to the container engine, made as it is sent."""

import io
import json
import os
import tarfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import dualpace
from dualpace.plan.manifest import MANIFEST, Manifest

BUNDLE = "/opt/dualpace/bundle"
WEIGHTS = "/weights"
# Secrets are mounted as folders: a file that is mounted by itself stays what it was when its source is replaced.
# What is in TLS has the names that a cluster gives to what a secret of this kind holds.
KEYS = "/run/secrets/dualpace-keys"
API_KEYS = f"{KEYS}/api-keys"
TLS = "/run/secrets/dualpace-tls"
PACKAGE = Path(dualpace.__file__).parent
# The kernel drops the signals that the first process of a container does not handle, and Python handles none while it
# starts. So there a shell passes them on to one that they end.
_COMMAND = """\
#!/bin/sh
[ $$ -eq 1 ] || exec python3 -m dualpace.cli "$@"
trap 'kill -TERM $child' TERM INT HUP
python3 -m dualpace.cli "$@" <&0 &
child=$!
wait $child
code=$?
while kill -0 $child 2>/dev/null; do
  wait $child
  code=$?
done
exit $code
"""
_CHUNK = 1 << 20
# Of the package, what serves: templates are compiled by then.
_LEFT_OUT = {"__pycache__", "templates", "locks", "Dockerfile"}


def dockerfile() -> Path:
    """The Dockerfile: inside an installed package, beside the package in a checkout."""
    installed = PACKAGE / "build" / "Dockerfile"
    return installed if installed.is_file() else PACKAGE.parent / "Dockerfile"


def in_image(manifest: Manifest) -> Manifest:
    """`manifest` as the image has it: what lies outside the bundle is where containers have it mounted."""
    plan, weights = manifest.plan, manifest.weights
    mounted = {"api_key_file": API_KEYS, "tls_certificate": f"{TLS}/tls.crt", "tls_key": f"{TLS}/tls.key"}
    files = {name: path if getattr(plan.serving, name) else "" for name, path in mounted.items()}
    outside = {
        "serving": plan.serving.model_copy(update=files | {"chat_template": ""}),
        "weights": plan.weights.model_copy(update={"path": WEIGHTS if plan.weights.path else ""}),
    }
    return manifest.model_copy(
        update={
            "plan": plan.model_copy(update=outside),
            "weights": weights and weights.model_copy(update={"folder": WEIGHTS}),
        }
    )


def context(
    bundle: Path, manifest: Manifest, wheels: Path, weights: Path | None, labels: Mapping[str, str]
) -> Iterator[bytes]:
    """The archive of the image of `bundle`: its `wheels`, its `labels`, the files in `weights` if they are baked in.

    The same inputs give the same bytes. Raises OSError for a file that cannot be read.
    """
    read, write = os.pipe()
    failure: list[Exception] = []

    def fill() -> None:
        try:
            with os.fdopen(write, "wb") as end, tarfile.open(fileobj=end, mode="w|", bufsize=_CHUNK) as archive:
                # Of its own accord an engine makes a step, and a layer, of each label.
                pairs = " ".join(f"{name}={json.dumps(value)}" for name, value in sorted(labels.items()))
                _write(archive, "Dockerfile", f"{dockerfile().read_text(encoding='utf-8')}LABEL {pairs}\n")
                _fill(archive, bundle, manifest, wheels, weights)
        except BrokenPipeError:  # the engine has stopped listening, and says why
            pass
        except Exception as error:
            failure.append(error)

    writer = threading.Thread(target=fill, daemon=True)
    writer.start()
    with os.fdopen(read, "rb") as start:
        while chunk := start.read(_CHUNK):
            yield chunk
    writer.join()
    if failure:
        raise failure[0]


def _fill(archive: tarfile.TarFile, bundle: Path, manifest: Manifest, wheels: Path, weights: Path | None) -> None:
    _add(archive, "stage.py", PACKAGE / "build" / "stage.py")
    for wheel in sorted(wheels.iterdir()):
        _add(archive, f"wheels/{wheel.name}", wheel)
    folder = f"checkpoint{WEIGHTS}"
    archive.addfile(_entry(folder, 0o755, tarfile.DIRTYPE))
    if weights and manifest.weights:
        for name in sorted(manifest.weights.files):
            _add(archive, f"{folder}/{name}", weights / name)
    for name in sorted(manifest.files):
        _add(archive, f"bundle/{name}", bundle / name)
    _write(archive, f"bundle/{MANIFEST}", in_image(manifest).model_dump_json(indent=1))
    for path in sorted(PACKAGE.rglob("*")):
        inside = path.relative_to(PACKAGE)
        if path.is_file() and not _LEFT_OUT.intersection(inside.parts):
            _add(archive, f"app/dualpace/{inside.as_posix()}", path)
    _write(archive, "app/bin/dualpace", _COMMAND, 0o755)


def _add(archive: tarfile.TarFile, name: str, path: Path) -> None:
    with path.open("rb") as file:
        entry = _entry(name, 0o644)
        entry.size = os.fstat(file.fileno()).st_size
        archive.addfile(entry, file)


def _write(archive: tarfile.TarFile, name: str, text: str, mode: int = 0o644) -> None:
    data = text.encode()
    entry = _entry(name, mode)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def _entry(name: str, mode: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    """An archive's entry, of no time and nobody's."""
    entry = tarfile.TarInfo(name)
    entry.mode = mode
    entry.type = kind
    return entry
