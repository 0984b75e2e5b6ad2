"""Commands about a deployment whose frontends are on other hosts."""

import pytest
import yaml
from typer.testing import CliRunner

from dualpace.cli import app
from tests.plans import SPECS

GATE = {"tls": {"certificate": "gate.crt", "key": "gate.key"}, "key_file": "frontend.key"}


@pytest.fixture
def spec(tmp_path):
    data = yaml.safe_load((SPECS / "quickstart.yaml").read_text())
    data["nic"] = {"transport": "rdma", "device": "mlx5_0", "gate": GATE}
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(data).replace("1.0e-06", "0.000001"))
    return str(path)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["build"], "not served in containers yet: build with --no-image"),
        (["manifest"], "not served in containers yet: write shm"),
        (["generate", "--prompt", "x"], "no frontend is started here: use `serve`, and `dualpace frontend` elsewhere"),
        (["serve", "--port", "1"], "--host and --port are a frontend's"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_it_cannot_have_is_refused_before_anything_is_built(spec, command, words, monkeypatch):
    def built(*_):
        raise AssertionError("built")

    monkeypatch.setattr("dualpace.build.bundle.build", built)
    name, *options = command
    ended = CliRunner().invoke(app, [name, spec, *options])
    assert ended.exit_code == 2
    assert words in ended.output


def test_a_frontends_options_reach_its_process(monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr("os.execv", lambda path, arguments: given.extend(arguments))
    options = ["--connect", "a:1", "--device", "mlx5_0", "--key-file", str(tmp_path / "key"), "--gid-index", "1"]
    assert CliRunner().invoke(app, ["frontend", *options]).exit_code == 0
    assert given[1:3] == ["-m", "dualpace.appliance.outpost"]
    said = dict(zip(given[3::2], given[4::2], strict=True))
    assert said == {
        "--connect": "a:1", "--device": "mlx5_0", "--key-file": str(tmp_path / "key"), "--device-port": "1",
        "--gid-index": "1",
    }  # fmt: skip
