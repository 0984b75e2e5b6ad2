"""Editors: the YAML language server finds the schema through a spec's first line, and checks and explains by it."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SPECS = Path(__file__).parents[2] / "specs"
SERVER = "yaml-language-server@2.0.0"


class Editor:
    """A client of the server, just enough of one: it opens texts and asks about positions."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._next = 0
        self.ask("initialize", {"processId": None, "rootUri": SPECS.parent.as_uri(), "capabilities": {}})
        self._send({"method": "initialized", "params": {}})

    def open(self, path: Path, text: str) -> list[dict[str, Any]]:
        """Open `text` as the file at `path`; what the server finds in it."""
        document = {"uri": path.as_uri(), "languageId": "yaml", "version": 1, "text": text}
        self._send({"method": "textDocument/didOpen", "params": {"textDocument": document}})
        while True:
            message = self._receive()
            params = message.get("params", {})
            if message.get("method") == "textDocument/publishDiagnostics" and params["uri"] == path.as_uri():
                return list(params["diagnostics"])

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        """The server's answer to a request."""
        self._next += 1
        self._send({"id": self._next, "method": method, "params": params})
        while True:
            message = self._receive()
            if message.get("id") == self._next and "method" not in message:
                return message["result"]

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout
        length = 0
        while line := self._process.stdout.readline().strip():
            if match := re.fullmatch(rb"Content-Length: (\d+)", line):
                length = int(match[1])
        message: dict[str, Any] = json.loads(self._process.stdout.read(length))
        if "id" in message and "method" in message:  # what the server asks of an editor: its settings, to register
            items = message.get("params", {}).get("items", [])
            self._send({"id": message["id"], "result": [None] * len(items)})
        return message


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    npm, node = shutil.which("npm"), shutil.which("node")
    if not (npm and node):
        pytest.skip("the YAML language server runs on node, which is not here")
    folder = tmp_path_factory.mktemp("server")
    install = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", SERVER]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True)
    if done.returncode and re.search("ENOTFOUND|ECONNREFUSED|ETIMEDOUT|EAI_AGAIN", done.stderr):
        pytest.skip("npm reaches no registry")
    assert done.returncode == 0, done.stderr
    command = [node, folder / "node_modules" / ".bin" / "yaml-language-server", "--stdio"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield Editor(process)
        finally:
            process.kill()


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_specs_are_clean(editor: Editor, path: Path) -> None:
    assert editor.open(path, path.read_text()) == []


def broken(old: str, new: str) -> tuple[Path, str, int]:
    """The quickstart as another file beside the schema with `old` replaced, and the line of that, from 0."""
    text = (SPECS / "quickstart.yaml").read_text()
    assert text.count(old) == 1
    name = re.sub(r"\W", "", new) or "removed"
    return SPECS / f"{name}.yaml", text.replace(old, new), text[: text.index(old)].count("\n")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("page_size: 16", "page_size: 24"),
        ("page_size: 16", "pagesize: 16"),
        ("kv_budget: 512MiB", "kv_budget: 512"),
        ("    heads: 4\n", "    heads: four\n"),
        ("dtype: bf16", "dtype: bf17"),
    ],
)
def test_broken_values_are_marked_at_their_line(editor: Editor, old: str, new: str) -> None:
    path, text, line = broken(old, new)
    assert {d["range"]["start"]["line"] for d in editor.open(path, text)} == {line}


def test_fields_are_explained_and_completed(editor: Editor) -> None:
    path, text, line = broken("page_size: 16", "page_size: 32")
    assert editor.open(path, text) == []
    where = {"textDocument": {"uri": path.as_uri()}, "position": {"line": line, "character": 4}}
    assert "Token positions of a KV page." in json.dumps(editor.ask("textDocument/hover", where))
    offered = editor.ask("textDocument/completion", where)
    labels = {item["label"] for item in (offered["items"] if isinstance(offered, dict) else offered)}
    assert "route" in labels
    assert "max_batch" not in labels
