"""KV in host memory over HTTP: rows that the card cannot hold, exact and sparse, beside those that it can."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from dualpace.build.bundle import build
from dualpace.build.store import Store
from dualpace.plan.resolve import resolve
from dualpace.spec.models import Spec
from tests.e2e.appliance import Served, serving
from tests.engine.compiled import Quiet

from .test_metrics import scrape
from .test_top import top

SHAPE = {
    "family": "llama", "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16, "intermediate": 96,
    "vocab": 300, "context": 2048,
}  # fmt: skip
# 48 pages of 8 KiB: 768 tokens. A row of more has 30 slots, and what a token attends to is 384 tokens of it.
SPEC: dict[str, Any] = {
    "name": "toy",
    "model": {"shape": SHAPE, "dtype": "fp32", "weights": {"random": 3}},
    "scheduler": {"max_batch": 4, "prefill_chunk": 128},
    "target": {"cpu": True, "kv_budget": "384KiB"},
    "offload": {"mode": "recall", "host_budget": "4MiB", "selection": {"blocks": 24}},
}
DENSE = SPEC | {"target": {"cpu": True, "kv_budget": "4MiB"}, "offload": {"mode": "off"}}
LONG, SHORT = [(7 * i * i + i) % 290 for i in range(1, 1001)], [*range(20, 60)]


def bundle_of(spec: dict[str, Any], folder: Path, store: Path) -> Path:
    build(resolve(Spec.model_validate(spec), folder), folder / "bundle", Store(store), Quiet())
    return folder / "bundle"


def complete(served: Served, prompt: list[int], tokens: int, **fields: Any) -> dict[str, Any]:
    body = {"model": "toy", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    response = httpx.post(f"{served.url}/v1/completions", json=body | fields, timeout=300)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


@pytest.fixture(scope="module")
def offloaded(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Served]:
    store = request.config.cache.mkdir("dualpace-store")
    with serving(bundle_of(SPEC, tmp_path_factory.mktemp("offloaded"), store)) as served:
        yield served


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What all KV in one place says to the long prompt."""
    store = request.config.cache.mkdir("dualpace-store")
    with serving(bundle_of(DENSE, tmp_path_factory.mktemp("dense"), store)) as served:
        return complete(served, LONG, 24)


def test_a_row_that_does_not_fit_is_answered_as_if_it_did(offloaded: Served, expected: dict[str, Any]) -> None:
    with ThreadPoolExecutor(3) as pool:
        long = pool.submit(complete, offloaded, LONG, 24)
        short = [pool.submit(complete, offloaded, SHORT, 8) for _ in range(2)]
        answer = long.result()
        assert all(one.result()["usage"]["completion_tokens"] == 8 for one in short)
    found, right = (each["choices"][0]["logprobs"] for each in (answer, expected))
    assert found["tokens"] == right["tokens"]
    assert found["token_logprobs"] == pytest.approx(right["token_logprobs"], abs=1e-3)
    assert answer["usage"]["completion_tokens_details"] is None


def test_sparse_attention_is_asked_for_and_labelled(offloaded: Served, expected: dict[str, Any]) -> None:
    before = scrape(offloaded)
    answer = complete(offloaded, LONG, 24, sparse_attention=True)
    # The first token is the prompt's, which attends to all of itself.
    assert answer["usage"]["completion_tokens_details"] == {"sparse_tokens": 23}
    assert answer["choices"][0]["logprobs"]["tokens"][0] == expected["choices"][0]["logprobs"]["tokens"][0]
    after = scrape(offloaded)

    def grown(name: str, **labels: str) -> float:
        key = name, frozenset(labels.items())
        return after[key] - before[key]

    assert grown("dualpace_slow_steps_total") >= 24
    assert grown("dualpace_recall_blocks_total", found="host") > 0
    assert grown("dualpace_recall_blocks_total", found="card") > 0
    # 62 pages of 8 KiB were full.
    assert grown("dualpace_link_bytes_total", way="leave") >= 62 * 8192
    assert after["dualpace_host_pages", frozenset({("state", "held")})] >= 0


def test_a_short_row_asked_to_be_sparse_has_nothing_to_leave_out(offloaded: Served) -> None:
    answer = complete(offloaded, SHORT, 8, sparse_attention=True)
    assert answer["usage"]["completion_tokens_details"] is None


def test_top_and_the_page_tell_of_it(offloaded: Served) -> None:
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(complete, offloaded, LONG, 400)
        shown = top(offloaded.url, "--once", "--interval", "0.5", PYTHONIOENCODING="utf-8")
        assert long.result()["usage"]["completion_tokens"] == 400
    assert shown.returncode == 0, shown.stderr
    assert "─ Slow rows ─" in shown.stdout
    assert "─ Recall ─" in shown.stdout
    page = httpx.get(f"{offloaded.url}/").text
    assert "Blocks recalled" in page
    assert "512 pages of KV in host memory" in page
