"""`dualpace top` beside a running appliance."""

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx2 as httpx

from tests.e2e.appliance import Served, serving
from tests.e2e.test_metrics import scrape


def top(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dualpace.cli", "top", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=os.environ | {"COLUMNS": "110"} | environment
    )


def test_it_says_what_metrics_say(tiny: Served) -> None:
    body = {"model": "toy", "prompt": "hello", "max_tokens": 40, "ignore_eos": True}
    assert httpx.post(f"{tiny.url}/v1/completions", json=body).status_code == 200
    shown = top(tiny.url, "--interval", "0.2", PYTHONIOENCODING="utf-8")
    assert shown.returncode == 0, shown.stderr
    values = scrape(tiny)
    # A frame is of one moment; nothing happens here between it and the scrape.
    for word, name in (("generated", "generated_tokens"), ("prompts", "prompt_tokens"), ("steps", "steps")):
        told = re.findall(rf"{word} ([\d,]+)", shown.stdout)
        assert float(told[-1].replace(",", "")) == values[f"dualpace_{name}_total", frozenset()]
    assert "DualPace toy" in shown.stdout
    assert "serving for" in shown.stdout
    assert "0 rows  of 8" in shown.stdout
    for title in ("Throughput", "TTFT", "TPOT", "Batch", "Queue", "KV"):
        assert f"─ {title} ─" in shown.stdout


def test_a_terminal_of_ascii_gets_ascii(tiny: Served) -> None:
    shown = top(tiny.url.removeprefix("http://"), "--once", "--interval", "0.2", PYTHONIOENCODING="ascii", COLUMNS="50")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.isascii()
    assert max(map(len, shown.stdout.splitlines())) <= 50


def test_what_cannot_be_watched_is_told_in_one_line(tiny: Served) -> None:
    for url, sentence in (("127.0.0.1:1", "Connection refused"), (f"{tiny.url}/v1", "answers 404")):
        refused = top(url)
        assert refused.returncode == 2
        assert sentence in refused.stderr
        assert refused.stderr.count("\n") == 1


def test_keys_are_read_from_a_file(tiny_bundle: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret requests=2\n")
    manifest = tiny_bundle / "manifest.json"
    original = manifest.read_text()
    manifest.write_text(original.replace('"api_key_file": ""', f'"api_key_file": "{keys}"'))
    try:
        with serving(tiny_bundle) as served:
            refused = top(served.url)
            assert refused.returncode == 2
            assert "401" in refused.stderr
            assert "--api-key-file" in refused.stderr
            shown = top(served.url, "--interval", "0.2", "--api-key-file", keys)
            assert shown.returncode == 0, shown.stderr
            assert "DualPace toy" in shown.stdout
    finally:
        manifest.write_text(original)
