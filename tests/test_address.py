"""Addresses as they are shown and given: with brackets around those of IPv6, wherever that is."""

import pytest

from dualpace.address import parted, refused, shown
from dualpace.appliance.deployment import load
from dualpace.appliance.server import describe
from dualpace.launch import Appliance
from dualpace.plan.manifest import read_manifest
from dualpace.plan.report import text_report
from tests.appliance.bundles import write_bundle
from tests.plans import example

GATE = {"host": "::", "tls": {"certificate": "gate.crt", "key": "gate.key"}, "key_file": "frontend.key"}


@pytest.mark.parametrize(
    ("host", "text"),
    [("10.0.0.7", "10.0.0.7:7471"), ("engine", "engine:7471"), ("fe80::1%eth0", "[fe80::1%eth0]:7471")],
)
def test_what_is_shown_can_be_given(host, text):
    assert shown(host, 7471) == text
    assert parted(text) == (host, 7471)


@pytest.mark.parametrize(
    "text", ["", "engine", "::1", "::1:7471", "[::1]", "[engine]:1", "a:", ":1", "a:0", "a:65536", "a:b"]
)
def test_what_is_no_address_with_a_port_is_refused(text):
    with pytest.raises(ValueError, match=r"write HOST:PORT, and \[ADDRESS\]:PORT for IPv6"):
        parted(text)


def test_brackets_are_wherever_an_address_is_shown(tmp_path):
    bundle = write_bundle(tmp_path / "bundle")
    manifest = read_manifest(bundle)
    assert Appliance(bundle, manifest, "::1", 80).url == "http://[::1]:80"
    assert " at http://[::1]:80/v1" in describe(load(bundle), "::1", 80)
    assert refused("::1", 80, OSError(1, "Not permitted")).startswith("cannot listen on [::1]:80: ")
    nic = {"transport": "rdma", "device": "mlx5_0", "gate": GATE}
    assert "[::]:7471, mlx5_0" in text_report(example("quickstart", nic=nic))
