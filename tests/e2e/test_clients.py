"""Clients that people use, unmodified, on a running appliance. `make clients` installs them, apart from all else."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.e2e.appliance import Served

CLIENTS = Path(__file__).parent / "clients"
PYTHON = CLIENTS.parents[2] / ".venv-clients" / "bin" / "python"
# Neither asks anybody else for prices, models or data.
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
Ask = Callable[..., Any]


def _need(there: bool) -> None:
    if not there:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("`make clients` has not been run, or found no npm")


def _run(command: list[str | Path], folder: Path = CLIENTS, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, env=os.environ | OFFLINE | environment
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture
def ask(tiny: Served) -> Ask:
    """A greedy answer without any client: `ask(path, **fields)`."""

    def ask(path: str, **fields: object) -> Any:
        body = {"model": "toy"} | ({"temperature": 0} if path.startswith("/v1") else {}) | fields
        return httpx.post(f"{tiny.url}{path}", json=body, timeout=60).raise_for_status().json()

    return ask


@pytest.mark.parametrize(
    ("client", "told"),
    [
        ("with_openai.mjs", {"models": ["toy"], "tokens": 8, "refusal": "temperature"}),
        ("with_langchain.py", {"refusal": "model"}),
        ("with_litellm.py", {"refusal": "ContextWindowExceededError"}),
    ],
)
def test_a_client_chats_completes_streams_counts_and_is_refused(
    tiny: Served, ask: Ask, client: str, told: dict[str, object]
):
    if client.endswith(".mjs"):
        _need((CLIENTS / "node_modules" / "openai").is_dir() and shutil.which("node") is not None)
        interpreter: str | Path = "node"
    else:
        _need(PYTHON.exists())
        interpreter = PYTHON
    answers = json.loads(_run([interpreter, CLIENTS / client, tiny.url]).splitlines()[-1])
    chat = ask("/v1/chat/completions", messages=MESSAGES, max_tokens=8)["choices"][0]["message"]["content"]
    text = ask("/v1/completions", prompt="hello", max_tokens=8)["choices"][0]["text"]
    assert {answers[name] for name in ("chat", "streamed", "asynchronous") if name in answers} == {chat}
    assert answers.get("batch", [chat]) == [chat] * len(answers.get("batch", [chat]))
    assert {answers["text"], answers["text_streamed"]} == {text}
    assert answers["usage"] == [8, 8]
    assert answers["finish_reason"] == "length"
    assert answers | told == answers


def test_lm_evaluation_harness_scores_and_completes(tiny: Served, tiny_bundle: Path, ask: Ask, tmp_path: Path):
    _need(PYTHON.exists())
    tokenizer = tiny_bundle.parent / "checkpoint"
    model = {
        "model": "toy", "base_url": f"{tiny.url}/v1/completions", "tokenizer_backend": "huggingface",
        "tokenizer": tokenizer, "num_concurrent": 2, "max_length": 256,
    }  # fmt: skip
    arguments = ",".join(f"{name}={value}" for name, value in model.items())
    tasks = CLIENTS / "tasks"
    command = [PYTHON.with_name("lm_eval"), "--model", "local-completions", "--model_args", arguments]
    command += ["--tasks", "toy_choices,toy_texts", "--include_path", tasks]
    _run([*command, "--output_path", tmp_path / "out", "--log_samples"], folder=tasks, HF_HOME=str(tmp_path / "hf"))

    def samples(task: str) -> list[dict[str, Any]]:
        (file,) = (tmp_path / "out").rglob(f"samples_{task}_*.jsonl")
        return sorted(map(json.loads, file.read_text().splitlines()), key=lambda sample: sample["doc_id"])

    def likelihood(context: str, choice: str) -> float:
        prompt = ask("/tokenize", prompt=context + choice)["tokens"]
        begin = len(ask("/tokenize", prompt=context)["tokens"])
        scored = ask("/v1/completions", prompt=prompt, max_tokens=0, echo=True, logprobs=1)
        return sum(scored["choices"][0]["logprobs"]["token_logprobs"][begin:])

    documents = json.loads((tasks / "choices.json").read_text())
    right = []
    for document, sample in zip(documents, samples("toy_choices"), strict=True):
        own = [likelihood(document["question"], choice) for choice in document["choices"]]
        assert [float(answer[0]) for answer in sample["filtered_resps"]] == pytest.approx(own, abs=1e-3)
        right.append(own.index(max(own)) == document["answer"])
    for document, sample in zip(documents, samples("toy_texts"), strict=True):
        own = ask("/v1/completions", prompt=document["question"], max_tokens=6, stop=["\n"])["choices"][0]["text"]
        assert sample["filtered_resps"] == [own]
    (results,) = (tmp_path / "out").rglob("results_*.json")
    assert json.loads(results.read_text())["results"]["toy_choices"]["acc,none"] == pytest.approx(sum(right) / 6)
