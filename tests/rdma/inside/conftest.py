"""Engines and frontends over either transport.

RDMA there is in the guest alone, which finds what is compiled. Elsewhere frontends come in as they do there, with
copies in the adapters' place.
"""

import os
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from dualpace.engine.claims import Claims
from dualpace.engine.link import Port
from dualpace.plan.abi import layout_hash
from dualpace.plan.manifest import FORMAT, HOST_RING, File, Manifest
from dualpace.plan.plan import Nic
from tests.rdma import copies, prepared
from tests.scheduler.engines import compile_host
from tests.scheduler.toy import Toy

from .steps import comes_in

# Set in the guest: the folder that `prepared` has filled.
PREPARED = Path(os.environ["DUALPACE_GUEST"]) if "DUALPACE_GUEST" in os.environ else None
TRANSPORTS = ("shm", "copies") if PREPARED is None else ("rdma",)
if PREPARED is None:
    # Before gate and uplink are imported, which take their endpoints from there.
    sys.modules["dualpace.engine.verbs"] = copies

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


class RemoteToy(Toy):
    """An engine over the toy model, whose frontends come in through a gate at its device rxe0, from rxe1.

    Key and certificate are in the folder `secrets`.
    """

    host = "127.0.0.1"

    def __init__(self, plan, libraries, folder, secrets):
        self.folder, self.secrets, self.said = folder, secrets, []
        self.plan, self.gate, self.uplinks = with_gate(plan, self.host, secrets), None, []
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
        self.claims = Claims(self.libraries.ring, self.memory)
        self.gate = Gate(bundle, self.manifest, self.plan.nic, self.memory, self.claims, self.said.append)

    def uplink(self, ring=None, **changes):
        """A frontend's way in."""
        from dualpace.engine.uplink import Uplink

        folder = self.folder / f"frontend{len(self.uplinks)}"
        folder.mkdir()
        given = {
            "host": self.host,
            "gate_port": self.gate.address[1],
            "key_file": str(self.secrets / prepared.KEY),
            "authority": str(self.secrets / prepared.CERTIFICATE),
            "port": Port("rxe1", 1, 1),
            "folder": folder,
            "ring": ring,
        }
        self.uplinks.append(Uplink(**given | changes))
        return self.uplinks[-1]

    def claim(self, ring):
        if self.gate is None:
            self.open_gate()
        uplink = self.uplink(ring)
        return comes_in(uplink)

    def close(self):
        for ring in self.rings:
            ring.close()
        self.gate.close()
        self.scheduler.close()
        self.memory.close()


def with_gate(plan, host, secrets):
    files = {"tls_certificate": prepared.CERTIFICATE, "tls_key": prepared.CERTIFICATE_KEY, "key_file": prepared.KEY}
    paths = {name: str(secrets / file) for name, file in files.items()}
    nic = Nic(device="rxe0", port=1, gid_index=1, memory="host", gate_host=host, gate_port=0, **paths)
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


@pytest.fixture(scope="session")
def issued(tmp_path_factory):
    """A folder with a key and a certificate."""
    if PREPARED:
        return PREPARED
    folder = tmp_path_factory.mktemp("issued")
    prepared.issue(folder)
    return folder


@pytest.fixture
def secrets(issued, tmp_path):
    """A folder with a copy of both, that a test may change."""
    folder = tmp_path / "secrets"
    folder.mkdir()
    for name in (prepared.KEY, prepared.CERTIFICATE, prepared.CERTIFICATE_KEY):
        shutil.copy(issued / name, folder)
    return folder


@pytest.fixture
def remote(libraries, secrets, tmp_path, monkeypatch):
    """Makes engines with a gate, and ends them."""
    # Under emulation beside other work a handshake may take long.
    monkeypatch.setattr("dualpace.engine.gate._STRANGER_S", 60.0)

    def make(plan, number):
        folder = tmp_path / f"engine{number}"
        folder.mkdir()
        return RemoteToy(plan, libraries(plan), folder, secrets)

    with making(make) as another:
        yield another


@pytest.fixture(params=TRANSPORTS)
def toys(request, libraries, tmp_path):
    """Makes engines over the toy model with frontends over one transport, and ends them."""
    if request.param != "shm":
        yield request.getfixturevalue("remote")
        return
    with making(lambda plan, number: Toy(plan, libraries(plan), tmp_path / f"rings{number}")) as another:
        yield another
