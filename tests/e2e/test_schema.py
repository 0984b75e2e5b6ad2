"""schemathesis makes requests from the OpenAPI document: no answer is a 5xx, or one that the document does not have."""

import subprocess
import sys
from pathlib import Path

from tests.e2e.appliance import Served

SECONDS = 40
# A request may be refused though it fits its schema: no schema can say that a prompt fits the context with what is to
# follow it, or that a token id is in the vocabulary where it is the name of a field.
EXCLUDED = "positive_data_acceptance"


def test_what_the_document_allows_is_answered_as_it_says(tiny: Served, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{tiny.url}/openapi.json", "--no-color"]
    phases = ["--phases", "examples,coverage,fuzzing", "--max-time", str(SECONDS), "--continue-on-failure"]
    # What is sent is the same in each run, though a slow machine gets less far.
    phases += ["--generation-deterministic", "--seed", "1", "--workers", "1"]
    checks = ["--checks", "all", "--exclude-checks", EXCLUDED, "--warnings", "off"]
    ended = subprocess.run([*command, *phases, *checks], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
    assert "0 selected" not in ended.stdout
    assert tiny.process.poll() is None
