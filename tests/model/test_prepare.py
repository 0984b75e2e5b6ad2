"""The build's subprocess: tokenizer, chat template and generation config of a model."""

import json
import subprocess
import sys

import pytest
from transformers import GPT2Tokenizer

from dualpace.model.error import ModelError
from dualpace.model.prepare import prepare
from dualpace.plan.manifest import Generation
from dualpace.plan.plan import Weights

from .conftest import byte_fallback_tokenizer, byte_level_tokenizer
from .plans import plan_for, tiny_model


def plan_at(path, kind="safetensors", template=""):
    plan = plan_for(tiny_model("llama").config, "llama", weights=Weights(kind=kind, path=str(path)))
    return plan.model_copy(update={"serving": plan.serving.model_copy(update={"chat_template": str(template)})})


def run(plan, tmp_path):
    out = tmp_path / "out"
    weights = prepare(plan, out, tmp_path / "store", lambda text, done, total: None)
    return out, weights, Generation.model_validate_json((out / "generation.json").read_bytes())


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def checkpoint(tmp_path):
    folder = write(tmp_path / "checkpoint")
    byte_fallback_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def test_the_tokenizer_of_a_folder_is_taken_as_it_is(checkpoint, tmp_path):
    out, weights, _ = run(plan_at(checkpoint), tmp_path)
    assert (out / "tokenizer.json").read_bytes() == (checkpoint / "tokenizer.json").read_bytes()
    assert weights == checkpoint


def test_eos_tokens_are_joined_with_the_tokenizers_own_first(checkpoint, tmp_path):
    write(
        checkpoint,
        generation_config={"eos_token_id": [40, 30], "bos_token_id": 9},
        config={"eos_token_id": 2, "text_config": {"eos_token_id": [50]}},
        tokenizer_config={"eos_token": {"content": "<eos>"}, "bos_token": "<bos>"},
    )
    generation = run(plan_at(checkpoint), tmp_path)[2]
    assert generation.eos_tokens == (2, 30, 40, 50)
    assert generation.bos_token == 1


@pytest.mark.parametrize(("stated", "adds"), [({}, True), ({"add_bos_token": False}, False)])
def test_bos_is_added_as_stated_or_as_the_tokenizer_does(checkpoint, tmp_path, stated, adds):
    write(checkpoint, tokenizer_config={"bos_token": "<bos>", **stated})
    assert run(plan_at(checkpoint), tmp_path)[2].add_bos == adds


def test_a_model_without_bos_adds_none(tmp_path):
    folder = write(tmp_path / "checkpoint", tokenizer_config={"bos_token": None, "eos_token": "<eos>"})
    byte_level_tokenizer().save(str(folder / "tokenizer.json"))
    generation = run(plan_at(folder), tmp_path)[2]
    assert (generation.bos_token, generation.add_bos, generation.eos_tokens) == (None, False, (1,))


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"eos_token_id": [2, 96]}, "EOS token 96 is outside the model's vocabulary of 96"),
        ({"eos_token_id": -1}, "EOS token -1 is outside"),
        ({"bos_token_id": 1000}, "BOS token 1000 is outside"),
        ({"eos_token_id": list(range(33))}, "33 EOS tokens are more than the 32 that can end a text"),
        ({"top_p": 0}, r"top_p 0\.0 is not above 0 and at most 1"),
        ({"temperature": -0.5}, r"temperature -0\.5 is not from 0 to 100"),
        ({"min_p": 2}, r"min_p 2\.0 is not from 0 to 1"),
        ({"repetition_penalty": 0}, r"repetition_penalty 0\.0 is not from 0\.01 to 100"),
    ],
)
def test_defaults_that_no_request_may_have_fail_the_build_by_name(checkpoint, tmp_path, settings, fault):
    write(checkpoint, generation_config=settings)
    with pytest.raises(ModelError, match=f"{checkpoint}: {fault}.*: correct its generation config"):
        run(plan_at(checkpoint), tmp_path)


def test_sampling_defaults_come_from_the_generation_config(checkpoint, tmp_path):
    write(checkpoint, generation_config={"temperature": 0.6, "top_p": 0.9, "top_k": None, "do_sample": True})
    generation = run(plan_at(checkpoint), tmp_path)[2]
    assert (generation.temperature, generation.top_p, generation.top_k) == (0.6, 0.9, 0)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"tokenizer_config.json": {"chat_template": "{{ 1 }}"}}, "{{ 1 }}"),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [
                        {"name": "rag", "template": "{{ 2 }}"},
                        {"name": "default", "template": "{{ 3 }}"},
                    ]
                }
            },
            "{{ 3 }}",
        ),
        ({"chat_template.json": {"chat_template": "{{ 4 }}"}}, "{{ 4 }}"),
        ({"tokenizer_config.json": {"chat_template": "{{ 1 }}"}, "chat_template.jinja": "{{ 5 }}"}, "{{ 5 }}"),
    ],
)
def test_the_chat_template_is_found_wherever_a_checkpoint_keeps_it(checkpoint, tmp_path, files, expected):
    for name, content in files.items():
        (checkpoint / name).write_text(content if isinstance(content, str) else json.dumps(content))
    template = run(plan_at(checkpoint), tmp_path)[0] / "chat_template.jinja"
    assert (template.read_text() if template.exists() else None) == expected
    replacement = tmp_path / "mine.jinja"
    replacement.write_text("{{ 6 }}")
    assert (run(plan_at(checkpoint, template=replacement), tmp_path)[0] / template.name).read_text() == "{{ 6 }}"


def test_random_weights_need_no_files(tmp_path):
    out, weights, generation = run(plan_at("", "random"), tmp_path)
    assert weights is None
    assert generation == Generation()
    assert [file.name for file in out.iterdir()] == ["generation.json"]


def test_random_weights_may_borrow_a_tokenizer(checkpoint, tmp_path):
    out, weights, _ = run(plan_at(checkpoint, "random"), tmp_path)
    assert weights is None
    assert (out / "tokenizer.json").exists()


def test_a_tokenizer_that_transformers_converts_gives_the_same_bytes_each_time(tmp_path):
    folder = write(tmp_path / "checkpoint", tokenizer_config={"tokenizer_class": "GPT2Tokenizer"})
    model = json.loads(byte_level_tokenizer().to_str())["model"]
    GPT2Tokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]]).save_pretrained(folder)
    (folder / "tokenizer.json").unlink(missing_ok=True)
    write(folder, vocab=model["vocab"])
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]))
    plan = plan_at(folder)
    plan = plan.model_copy(update={"model": plan.model.model_copy(update={"vocab": 400})})
    first, again = (run(plan, tmp_path / name)[0].joinpath("tokenizer.json").read_bytes() for name in ("a", "b"))
    assert first == again
    assert json.loads(first)["model"]["merges"] == model["merges"]


def test_a_decoder_that_cannot_stream_fails_the_build(checkpoint, tmp_path):
    description = json.loads((checkpoint / "tokenizer.json").read_text())
    write(checkpoint, tokenizer=description | {"decoder": None})
    with pytest.raises(ModelError, match="decodes by"):
        run(plan_at(checkpoint), tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer.json", "{", r"tokenizer\.json is not a tokenizer"),
        ("generation_config.json", "{", r"generation_config\.json is not JSON"),
        ("chat_template.jinja", "{% if %}", "chat template is not valid"),
    ],
)
def test_a_broken_file_is_named(checkpoint, tmp_path, name, text, message):
    (checkpoint / name).write_text(text)
    with pytest.raises(ModelError, match=message):
        run(plan_at(checkpoint), tmp_path)


def command(plan, tmp_path):
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    arguments = [str(tmp_path / name) for name in ("plan.json", "out", "store")]
    return subprocess.run(
        [sys.executable, "-m", "dualpace.model.prepare", *arguments], capture_output=True, text=True, check=False
    )


def test_stdout_is_json_lines_that_end_with_the_weights(checkpoint, tmp_path):
    done = command(plan_at(checkpoint), tmp_path)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert lines[-1] == {"weights": str(checkpoint)}
    assert all(line.keys() == {"progress", "done", "total"} for line in lines[:-1])


def test_a_failure_is_one_line_on_stderr_and_exit_code_2(tmp_path):
    done = command(plan_at(write(tmp_path / "empty")), tmp_path)
    assert done.returncode == 2
    assert done.stdout.count("weights") == 0
    assert done.stderr == f"{tmp_path / 'empty'} has no tokenizer: put the model's tokenizer.json there\n"


@pytest.mark.model
def test_a_gguf_brings_its_tokenizer_and_special_tokens(gemma):
    generation = Generation.model_validate_json((gemma / "model" / "generation.json").read_bytes())
    assert generation == Generation(bos_token=2, add_bos=True, eos_tokens=(1, 106))
    assert {file.name for file in (gemma / "model").iterdir()} == {"generation.json", "tokenizer.json"}
