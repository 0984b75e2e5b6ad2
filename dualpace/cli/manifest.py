"""`manifest`: what a container host or a cluster is told to run a spec's image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dualpace.cli.build import fail_build
from dualpace.cli.inputs import SpecPath, load_plan
from dualpace.cli.terminal import fail, show

MOST_PORT = 65535


def manifest(
    spec: SpecPath,
    replicas: Annotated[int, typer.Option(min=1, max=1000, help="Containers.")] = 1,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Where to write.", show_default="<name>.manifests"),
    ] = None,
    image: Annotated[
        str, typer.Option(metavar="NAME", help="The image.", show_default="dualpace-appliance:<name>")
    ] = "",
    baked: Annotated[bool, typer.Option("--baked", help="The image has its weights baked in.")] = False,
    most_replicas: Annotated[
        int, typer.Option(min=0, max=1000, help="Most that the cluster scales to; 0: twice REPLICAS.")
    ] = 0,
    waiting: Annotated[
        int, typer.Option(min=0, help="Waiting requests at a replica beyond which to scale; 0: max_batch / 4.")
    ] = 0,
    gateway: Annotated[str, typer.Option(metavar="NAME", help="The Gateway that routes to it.")] = "inference",
) -> None:
    """Write a compose file and Kubernetes manifests for a spec's image."""
    import yaml

    from dualpace.build.errors import BuildError
    from dualpace.deploy.compose import compose
    from dualpace.deploy.facts import facts
    from dualpace.deploy.kubernetes import Scaling, resources

    plan = load_plan(spec)
    if plan.nic:
        fail("nic.transport rdma is not served in containers yet: write shm for a manifest")
    if most_replicas and most_replicas < replicas:
        fail(f"--most-replicas {most_replicas} is less than --replicas {replicas}: raise it")
    try:
        known = facts(plan, image, replicas, baked=baked)
    except BuildError as error:
        fail_build(spec, error)
    if (last := known.port + replicas - 1) > MOST_PORT:
        fail(f"--replicas {replicas} take ports up to {last}, and there are {MOST_PORT}: lower it or serving.port")
    scaling = Scaling(most=most_replicas or 2 * replicas, waiting=waiting or max(plan.schedule.max_batch // 4, 1))
    folder = output or Path(f"{plan.name}.manifests")
    folder.mkdir(parents=True, exist_ok=True)
    documents: dict[str, list[dict[str, Any]]] = {
        "compose.yaml": [compose(known)],
        "kubernetes.yaml": resources(known, scaling, gateway),
    }
    for name, content in documents.items():
        (folder / name).write_text(yaml.safe_dump_all(content, sort_keys=False), encoding="utf-8")
        show(f"{folder / name}\n")
