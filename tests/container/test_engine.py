"""The tests' own engine: what it lacks is named, and what it had of the machine's networking it gives back."""

import os
import shutil
from pathlib import Path

import pytest
from docker import DockerClient

from tests.container import engine


def test_a_tool_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.os, "getuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "debootstrap" else f"/usr/bin/{tool}")
    with pytest.raises(engine.NoEngineError, match=r"^not installed: debootstrap$"), engine.engine(tmp_path / "engine"):
        pass


def test_a_second_engine_has_a_bridge_and_addresses_of_its_own_and_leaves_nothing(
    client: DockerClient, tmp_path: Path
) -> None:
    before = engine.networking()
    with engine.engine(tmp_path / "engine", "second") as second:
        assert second.client.images.list() == []
        during = engine.networking()
        added = during["devices"].keys() - before["devices"].keys()
        assert added == {f"dp{os.getpid()}second"}
        assert during["firewall"] == before["firewall"]
        assert during["forwarding"] == before["forwarding"]
        assert client.ping()
    assert engine.networking() == before


def test_an_engine_of_another_run_is_none_of_its_concern(client: DockerClient) -> None:
    before = engine.networking()
    with engine._bridge("dp1"):
        assert engine.networking() == before
