"""`frontend`: the HTTP side of an engine on another host, through RDMA."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer


def frontend(
    connect: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where the engine lets frontends in.")],
    device: Annotated[str, typer.Option(help="RDMA device of this host, as `ibv_devices` lists it.")],
    key_file: Annotated[Path, typer.Option(metavar="FILE", help="The key of nic.gate.key_file, as the engine has it.")],
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What the engine's certificate is checked with, PEM.")
    ] = None,
    device_port: Annotated[int, typer.Option(min=1, max=255, help="Port of the device.")] = 1,
    gid_index: Annotated[int, typer.Option(min=0, max=255, help="Index of the port's GID.")] = 3,
    ring: Annotated[int | None, typer.Option(min=0, help="Which ring to ask for.", show_default="any")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="the spec's")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="TCP port; 0 picks one.", show_default="the spec's")
    ] = None,
) -> None:
    """Serve what an engine on another host does, from here: on a SmartNIC's cores, or any host with RDMA."""
    options = {
        "--connect": connect,
        "--device": device,
        "--key-file": key_file,
        "--ca": ca,
        "--device-port": device_port,
        "--gid-index": gid_index,
        "--ring": ring,
        "--host": host,
        "--port": port,
    }
    given = [str(word) for option, value in options.items() if value is not None for word in (option, value)]
    sys.stderr.flush()
    # In this process's place: it drains at the signals that reach it.
    os.execv(sys.executable, [sys.executable, "-m", "dualpace.appliance.outpost", *given])
