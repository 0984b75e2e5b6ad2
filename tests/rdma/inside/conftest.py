"""Engines and frontends over either transport.

RDMA there is in the guest alone, which finds what is compiled. Elsewhere what carries a ring over it is tested with
copies in the adapters' place.
"""

import ctypes
import os
from contextlib import contextmanager
from pathlib import Path

import pytest

from dualpace.engine.claims import Claims
from dualpace.engine.ring import FrontendRing
from dualpace.plan.abi import layout_hash
from dualpace.plan.manifest import FORMAT, HOST_RING, File, Manifest
from dualpace.plan.plan import Nic
from tests.rdma import prepared
from tests.rdma.copies import transport
from tests.scheduler.engines import compile_host
from tests.scheduler.toy import Toy

# Set in the guest: the folder that `prepared` has filled.
PREPARED = Path(os.environ["DUALPACE_GUEST"]) if "DUALPACE_GUEST" in os.environ else None
TRANSPORTS = ("shm", "copies") if PREPARED is None else ("rdma",)

collect_ignore = ["test_faults.py", "test_line.py", "test_traffic.py"] if PREPARED is None else []


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    """Plan -> its libraries."""
    compiled = {}

    def of(plan):
        if PREPARED:
            return prepared.libraries(PREPARED, plan.name)
        if plan not in compiled:
            compiled[plan] = compile_host(plan, tmp_path_factory.mktemp(plan.name))
        return compiled[plan]

    return of


class CopiedToy(Toy):
    """An engine over the toy model, with the memory of its frontends' rings apart from its own."""

    def claim(self, ring):
        address = self.memory.address
        claims = Claims(self.libraries.ring, self.memory)
        lock = claims.hold(ring)
        carried = transport(
            self.plan,
            ring,
            self.memory.path.parent,
            lambda offset, size: ctypes.string_at(address + offset, size),
            lambda offset, content: ctypes.memmove(address + offset, content, len(content)),
            lambda: claims.let_go(ring, lock),
        )
        return FrontendRing(self.libraries.ring, carried.path, ring, carried)


class RemoteToy(Toy):
    """An engine over the toy model, whose frontends come in through a gate at its device rxe0, from rxe1."""

    def __init__(self, plan, libraries, folder):
        self.folder, self.said = folder, []
        self.plan, self.gate, self.uplinks = with_gate(plan), None, {}
        super().__init__(self.plan, libraries, folder / "rings")

    def open_gate(self):
        from dualpace.engine.gate import Gate

        bundle = self.folder / "bundle"
        (bundle / "host").mkdir(parents=True)
        (bundle / HOST_RING).write_bytes(self.libraries.ring.read_bytes())
        self.manifest = Manifest(
            format=FORMAT, version="0", digest="0123456789abcdef", layout=layout_hash(self.plan), plan=self.plan,
            files={HOST_RING: File(size=self.libraries.ring.stat().st_size, sha256="")}, weights=None, toolchain={},
        )  # fmt: skip
        claims = Claims(self.libraries.ring, self.memory)
        self.gate = Gate(bundle, self.manifest, self.plan.nic, self.memory, claims, self.said.append)

    def uplink(self, ring=None, **changes):
        """A frontend's way in."""
        from dualpace.engine.link import Port
        from dualpace.engine.uplink import Uplink

        folder = self.folder / f"frontend{len(self.uplinks)}"
        folder.mkdir()
        given = {
            "host": "127.0.0.1",
            "gate_port": self.gate.address[1],
            "key": (PREPARED / prepared.KEY).read_bytes().strip(),
            "authority": str(PREPARED / prepared.CERTIFICATE),
            "port": Port("rxe1", 1, 1),
            "folder": folder,
            "ring": ring,
        }
        made = Uplink(**given | changes)
        self.uplinks[len(self.uplinks)] = made
        return made

    def claim(self, ring):
        if self.gate is None:
            self.open_gate()
        uplink = self.uplink(ring)
        uplink.fetch()
        claimed = uplink.claim()
        claimed.uplink = uplink
        return claimed

    def close(self):
        for ring in self.rings:
            ring.close()
        self.gate.close()
        self.scheduler.close()
        self.memory.close()


def with_gate(plan):
    files = {"tls_certificate": prepared.CERTIFICATE, "tls_key": prepared.CERTIFICATE_KEY, "key_file": prepared.KEY}
    paths = {name: str(PREPARED / file) for name, file in files.items()}
    nic = Nic(device="rxe0", port=1, gid_index=1, memory="host", gate_host="127.0.0.1", gate_port=0, **paths)
    return plan.model_copy(update={"nic": nic})


@contextmanager
def making(make):
    """Makes engines by `make`, which is given a plan and how many there are, and ends them."""
    made = []

    def another(plan):
        made.append(make(plan, len(made)))
        return made[-1]

    yield another
    for toy in made:
        toy.close()


@pytest.fixture
def remote(libraries, tmp_path):
    """Makes engines with a gate, and ends them."""

    def make(plan, number):
        folder = tmp_path / f"engine{number}"
        folder.mkdir()
        return RemoteToy(plan, libraries(plan), folder)

    with making(make) as another:
        yield another


@pytest.fixture
def elsewhere(request, libraries, tmp_path):
    """Makes engines over the toy model with frontends of other hosts, and ends them."""
    if PREPARED:
        yield request.getfixturevalue("remote")
        return
    with making(lambda plan, number: CopiedToy(plan, libraries(plan), tmp_path / f"rings{number}")) as another:
        yield another


@pytest.fixture(params=TRANSPORTS)
def toys(request, libraries, tmp_path):
    """Makes engines over the toy model with frontends over one transport, and ends them."""
    if request.param != "shm":
        yield request.getfixturevalue("elsewhere")
        return
    with making(lambda plan, number: Toy(plan, libraries(plan), tmp_path / f"rings{number}")) as another:
        yield another
