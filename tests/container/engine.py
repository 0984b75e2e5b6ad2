"""A container engine of the tests' own: nobody else's images, socket, bridge or addresses."""

import ipaddress
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker import DockerClient

TOOLS = ("dockerd", "debootstrap", "ip")
RANGES = [f"10.{second}.77.1/24" for second in range(213, 223)]
RELEASE = "bookworm"
# What debootstrap leaves that images of Debian do not have.
LITTER = (
    "var/cache/apt/archives",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "var/log",
)
START_SECONDS = 60
_BRIDGE = re.compile(r"dp(\d+)")  # the process that made it
ENGINE_OPTIONS = (
    "--iptables=false",
    "--ip6tables=false",
    "--ip-forward=false",
    "--ip-masq=false",
    "--storage-driver=overlay2",
)


class NoEngineError(Exception):
    """Why there can be no engine on this machine."""


@dataclass(frozen=True)
class Engine:
    """A running engine; `address` is what DOCKER_HOST says of it."""

    client: DockerClient
    address: str


@contextmanager
def engine(folder: Path, suffix: str = "") -> Iterator[Engine]:
    """Run an engine that keeps everything in `folder` until the block ends. Raises NoEngineError."""
    if os.getuid() != 0:
        raise NoEngineError("an engine of its own has to be started by root")
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise NoEngineError(f"not installed: {', '.join(missing)}")
    before = networking()
    bridge = f"dp{os.getpid()}{suffix}"  # with a killed run's left behind, this one still starts
    try:
        with _bridge(bridge), _daemon(folder, bridge) as started:
            yield started
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert networking() == before, "the tests' engine left something in this machine's networking"


def networking() -> dict[str, Any]:
    """What an engine would change of a machine's networking: devices, addresses, routes, forwarding, firewall.

    Bridges of other runs of these tests, and what hangs on them, come and go as they like.
    """
    devices = {
        device["ifname"]: [(address["local"], address["prefixlen"]) for address in device["addr_info"]]
        for device in json.loads(_output("ip", "-json", "address"))
        if not {device["ifname"], device.get("master", "")} & _others()
    }
    rules = _output("iptables-save") if shutil.which("iptables-save") else ""
    return {
        "devices": devices,
        "routes": [route for route in json.loads(_output("ip", "-json", "route")) if route["dev"] not in _others()],
        "forwarding": Path("/proc/sys/net/ipv4/ip_forward").read_text(),
        "firewall": [line for line in rules.splitlines() if not line.startswith(("#", ":"))],
    }


def _others() -> set[str]:
    """The bridges of engines that other processes started for tests."""
    names = (device["ifname"] for device in json.loads(_output("ip", "-json", "link", "show", "type", "bridge")))
    return {name for name in names if (match := _BRIDGE.match(name)) and int(match[1]) != os.getpid()}


@contextmanager
def _bridge(name: str) -> Iterator[None]:
    taken = [ipaddress.ip_network(route["dst"], strict=False) for route in json.loads(_output("ip", "-json", "route"))
             if route["dst"] != "default"]  # fmt: skip
    free = (text for text in RANGES if not any(ipaddress.ip_interface(text).network.overlaps(other) for other in taken))
    try:
        _output("ip", "link", "add", name, "type", "bridge")
    except subprocess.CalledProcessError as error:
        raise NoEngineError(f"no bridge can be made: {error.stderr.strip()}") from error
    try:
        _output("ip", "address", "add", next(free), "dev", name)
        _output("ip", "link", "set", name, "up")
        yield
    finally:
        _output("ip", "link", "delete", name)


@contextmanager
def _daemon(folder: Path, bridge: str) -> Iterator[Engine]:
    folder.mkdir(parents=True)
    configuration, log = folder / "daemon.json", folder / "log"
    configuration.write_text("{}")
    # Sockets are in here: their paths may have no more than 107 bytes.
    short = Path(tempfile.mkdtemp(prefix="dp-"))
    address = f"unix://{short}/socket"
    paths = ("--data-root", folder / "data", "--exec-root", short / "run", "--pidfile", folder / "pid")
    command = ["dockerd", "--config-file", configuration, "--host", address, "--bridge", bridge, *paths]
    command += ENGINE_OPTIONS
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        client = _connected(address, process, log)
        yield Engine(client, address)
        for container in client.containers.list(all=True):
            container.remove(force=True)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        # It leaves the namespace of the host's network mounted, and its data where it could not start.
        for line in Path("/proc/mounts").read_text().splitlines():
            if (place := line.split()[1]).startswith((f"{short}/", f"{folder}/")):
                _output("umount", place)
        shutil.rmtree(short)


def _connected(address: str, process: subprocess.Popen[bytes], log: Path) -> DockerClient:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return DockerClient(base_url=address, timeout=600)
        except (docker.errors.DockerException, OSError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(errors="replace").strip().splitlines()[-3:]
                raise NoEngineError("dockerd does not start: " + " | ".join(said)) from error
            time.sleep(0.2)


def import_bases(client: DockerClient, folder: Path) -> tuple[str, str]:
    """Make the two bases that the Dockerfile needs, to compile on and to run on, and return their names."""
    root = folder / "root"
    subprocess.run(["debootstrap", "--variant=minbase", RELEASE, root], check=True, capture_output=True, timeout=900)
    for name in LITTER:
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir()
    with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as archive:
        client.api.import_image(src=archive.stdout, repository="base", tag="runtime")
    shutil.rmtree(root)
    with_python = "FROM base:runtime\nRUN apt-get update -q && apt-get install -y -q --no-install-recommends python3\n"
    (folder / "Dockerfile").write_text(with_python)
    client.images.build(path=str(folder), tag="base:compile", network_mode="host", rm=True)
    return "base:compile", "base:runtime"


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
