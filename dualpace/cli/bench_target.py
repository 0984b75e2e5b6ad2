"""What `bench` measures: a server that is there, or a spec or bundle that it serves meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dualpace.cli.serve import refuse_remote, served
from dualpace.cli.terminal import fail

# Ids that are plain tokens in all usual vocabularies: special ones lie before or after.
IDS = (1000, 31_000)


class Target(NamedTuple):
    """A server that answers. `about` is what a result says of it; `certificate` as Load has it."""

    url: str
    certificate: str | None
    key: str
    model: str
    max_context: int | None
    ids: tuple[int, int]
    about: dict[str, Any]


@contextmanager
def target_of(text: str, key: str, threads: int, store: Path | None) -> Iterator[Target]:
    """The server at the URL `text`, or one of the spec or bundle at the path `text` until the block ends."""
    if "://" in text:
        yield _there(text, key, IDS, None, {})
        return
    source = Path(text)
    if not source.exists():
        fail(f"{text} is neither a file nor a URL: write a server like http://127.0.0.1:8000")
    from dualpace.build.progress import report_to
    from dualpace.launch import Appliance, LaunchError, end_on_signals
    from dualpace.plan.api_keys import read_api_keys
    from dualpace.plan.manifest import BundleError

    bundle, manifest = served(source, store, refuse_remote)
    try:
        keys = read_api_keys(manifest.plan.serving.api_key_file)
    except BundleError as error:
        fail(str(error))
    vocabulary = manifest.plan.model.vocab
    ids = (min(IDS[0], vocabulary // 4), min(IDS[1], vocabulary))
    end_on_signals()
    try:
        with Appliance(bundle, manifest, "127.0.0.1", 0, threads, quiet=True) as appliance:
            with report_to(sys.stderr) as progress:
                appliance.start(progress.step)
            about = {"spec": manifest.plan.name, "digest": manifest.digest, "dualpace": manifest.version}
            # A key of the environment is for another server.
            own = keys[0].key.decode("latin-1") if keys else ""
            yield _there(appliance.url, own, ids, manifest.plan.serving.tls_certificate or None, about)
    except LaunchError as error:
        fail(str(error), error.code)


def _there(url: str, key: str, ids: tuple[int, int], certificate: str | None, about: dict[str, Any]) -> Target:
    from dualpace.bench.server import ServerError, describe

    try:
        found = describe(url, key, certificate)
    except ServerError as error:
        fail(str(error))
    known = about | {"url": url, "model": found.model, "max_context": found.max_context, "software": found.software}
    return Target(url, certificate, key, found.model, found.max_context, ids, known)
