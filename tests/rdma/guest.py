"""A virtual machine whose kernel makes RDMA devices of network interfaces (Soft-RoCE), which containers cannot have.

It runs Debian's kernel under emulation, and sees the files of this machine: the same Python, packages and checkout.
What it writes stays in its memory, apart from one folder. Its two devices, rxe0 and rxe1, are joined by a pair of
virtual Ethernet interfaces, so that a link can go down between them.
"""

import contextlib
import gzip
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TextIO

CACHE = Path.home() / ".cache/dualpace/guest"
TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
    "modprobe": "kmod",
    "depmod": "kmod",
    "busybox": "busybox-static",
    "cpio": "cpio",
    "ip": "iproute2",
    "rdma": "iproute2",
    "openssl": "openssl",
}
VERBS = Path("/usr/lib/python3/dist-packages/pyverbs")
MODULES = ("9pnet_virtio", "9p", "virtio_pci", "overlay", "veth", "crc32_generic", "rdma_rxe")
MEMORY_MIB = 4096

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in /modules/*.ko; do insmod $module || exit; done
options=trans=virtio,version=9p2000.L,msize=1048576
mount -t 9p -o $options,ro,cache=loose host /lower
mount -t tmpfs -o size=90% memory /memory; mkdir /memory/upper /memory/work
mount -t overlay -o lowerdir=/lower,upperdir=/memory/upper,workdir=/memory/work overlay /root
mkdir -p /root/mnt/shared; mount -t 9p -o $options shared /root/mnt/shared
for folder in proc sys dev; do mount --move /$folder /root/$folder; done
mkdir -p /root/dev/shm; chroot /root mount -t tmpfs memory /dev/shm
chroot /root /bin/bash /mnt/shared/run > /root/mnt/shared/log 2>&1
echo $? > /root/mnt/shared/status
poweroff -f
"""

# Both addresses are of one machine, which would deliver to itself over its loopback: rules keep packets to the wire.
NETWORK = """set -e
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ip link set lo up
ip link add v0 type veth peer name v1
ip rule add pref 100 lookup local; ip rule del pref 0
for i in 0 1; do
  ip addr add 10.7.0.$i/24 dev v$i; ip link set v$i up
  echo 1 > /proc/sys/net/ipv4/conf/v$i/accept_local; echo 0 > /proc/sys/net/ipv4/conf/v$i/rp_filter
  ip rule add pref 1$i iif v$i lookup local
done
echo 1 > /proc/sys/net/ipv4/conf/all/accept_local; echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
for i in 0 1; do
  other=$((1 - i))
  ip rule add pref 2$i from 10.7.0.$i to 10.7.0.$other lookup 20$i
  ip route add 10.7.0.$other dev v$i table 20$i
  ip neigh replace 10.7.0.$other dev v$i lladdr $(cat /sys/class/net/v$other/address) nud permanent
  rdma link add rxe$i type rxe netdev v$i
done
"""


def missing() -> list[str]:
    """What this machine lacks to run a guest, as packages of Debian."""
    packages = {package for tool, package in TOOLS.items() if shutil.which(tool, path=_path()) is None}
    if find_spec("pyverbs") is None and not any(VERBS.glob(f"*{_tag()}*")):
        packages.add(f"python3-pyverbs for Python {sys.version_info.major}.{sys.version_info.minor}")
    return sorted(packages)


def _path() -> str:
    return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _tag() -> str:
    return f"cpython-{sys.version_info.major}{sys.version_info.minor}-"


class Ended(NamedTuple):
    """The status of a script, what it wrote, the seconds of its guest, and those that its CPUs waited for a core."""

    status: int
    written: str
    seconds: float
    waited: float


def run(script: str, folder: Path, seconds: float) -> Ended:
    """Run `script`, of bash, in a guest, `seconds` at most. It finds `folder` as /mnt/shared too."""
    image = _kernel()
    release = next((image / "lib/modules").iterdir()).name
    links = "mkdir /tmp/verbs; ln -s /usr/lib/python3/dist-packages/pyverbs /tmp/verbs\nexport PYTHONPATH=/tmp/verbs\n"
    links = "" if find_spec("pyverbs") else links
    (folder / "run").write_text(f"{NETWORK}{links}{script}")
    shares = {"host": ("/", "readonly=on,multidevs=remap"), "shared": (str(folder), "multidevs=remap")}
    command = ["nice", "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"]
    command += [
        "-name",
        "guest,debug-threads=on",
        "-m",
        str(MEMORY_MIB),
        "-nodefaults",
        "-nographic",
        "-no-reboot",
        "-serial",
        "stdio",
    ]
    command += ["-kernel", str(image / f"boot/vmlinuz-{release}"), "-initrd", str(_initramfs(image, release, folder))]
    command += ["-append", "console=ttyS0 quiet panic=-1 mitigations=off"]
    for tag, (path, options) in shares.items():
        command += ["-fsdev", f"local,id={tag},path={path},security_model=none,{options}"]
        command += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    with (folder / "console").open("w+") as console:
        spent, waited = watched(command, console, seconds, "CPU ")
        console.seek(0)
        shown = console.read()
    log = folder / "log"
    written = log.read_text(errors="replace") if log.exists() else ""
    status = folder / "status"
    if not status.exists():
        why = "was ended" if spent >= seconds else "ended early"
        raise AssertionError(f"the guest {why} after {spent:.0f} s:\n{shown[-4000:]}\n{written[-20000:]}")
    return Ended(int(status.read_text()), written, spent, waited)


def watched(command: Sequence[str], output: TextIO, seconds: float, threads: str) -> tuple[float, float]:
    """How long `command` ran, `seconds` at most, and how much of it its `threads`, named so, waited for a core."""
    begin = last = time.monotonic()
    waited, before = 0.0, (0.0, 0.0)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output) as process:
        while process.poll() is None:
            if time.monotonic() - begin > seconds:
                process.kill()
            time.sleep(0.2)
            now, each = time.monotonic(), _scheduled(process.pid, threads)
            ran, stood = (max(0.0, after - earlier) for after, earlier in zip(each, before, strict=True))
            # Of the time that they had work, the share that they did not get, however many they are.
            waited += min(now - last, ran + stood) * stood / max(ran + stood, 1e-9)
            last, before = now, each
    return time.monotonic() - begin, waited


def _scheduled(process: int, threads: str) -> tuple[float, float]:
    """Seconds that those threads of a process together have run, and waited for a core."""
    ran = waited = 0
    for thread in Path("/proc").glob(f"{process}/task/*"):
        with contextlib.suppress(OSError):  # it has ended
            if (thread / "comm").read_text().startswith(threads):
                figures = (thread / "schedstat").read_text().split()
                ran, waited = ran + int(figures[0]), waited + int(figures[1])
    return ran / 1e9, waited / 1e9


def _kernel() -> Path:
    """The folder of Debian's kernel package, unpacked, with an index of its modules."""
    kernel = CACHE / "kernel"
    if not kernel.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        policy = subprocess.run(
            ["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True, check=True
        )
        (package,) = (line.split()[-1] for line in policy.stdout.splitlines() if "Depends: linux-image-" in line)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            subprocess.run(["apt-get", "download", "-q", package], cwd=folder, check=True)
            (archive,) = Path(folder).glob("*.deb")
            new = Path(folder) / "kernel"
            subprocess.run(["dpkg-deb", "-x", archive, new], check=True)
            release = next((new / "lib/modules").iterdir()).name
            subprocess.run(["depmod", "-b", new, release], env={"PATH": _path()}, check=True)
            with contextlib.suppress(OSError):  # another run was faster
                new.rename(kernel)
    return kernel


def _initramfs(image: Path, release: str, folder: Path) -> Path:
    """A root with busybox, the modules in the order in which they load, and what mounts the rest."""
    made, root = folder / "initramfs.gz", folder / "initramfs"
    for name in ("bin", "dev", "lower", "memory", "modules", "proc", "root", "sys"):
        (root / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox", path=_path()) or "", root / "bin/busybox")
    (root / "init").write_text(INIT)
    (root / "init").chmod(0o755)
    shown = ["modprobe", "-d", str(image), "-S", release, "--show-depends"]
    lines = [
        line
        for module in MODULES
        for line in subprocess.run(
            [*shown, module], env={"PATH": _path()}, capture_output=True, text=True, check=True
        ).stdout.splitlines()
    ]
    for number, path in enumerate(dict.fromkeys(line.split()[1] for line in lines if line.startswith("insmod"))):
        shutil.copy(path, root / "modules" / f"{number:02}.ko")
    names = subprocess.run(["find", "."], cwd=root, capture_output=True, check=True).stdout
    archive = subprocess.run(
        ["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, input=names, capture_output=True, check=True
    ).stdout
    made.write_bytes(gzip.compress(archive, 1))
    return made
