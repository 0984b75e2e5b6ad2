"""Tiny models made by transformers, and plans for them."""

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config

from dualpace.plan.architectures import ARCHITECTURES
from dualpace.plan.plan import (
    Attention,
    LayerGroup,
    Memory,
    Model,
    Offload,
    Plan,
    Rings,
    Rope,
    Schedule,
    Serving,
    Target,
    Weights,
)

# head_dim is not hidden / heads, and every size differs, so that a mixed-up shape cannot fit by chance.
_SIZES = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": None,
}
_CONFIGS = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "gemma2": Gemma2Config,
    "gemma3": Gemma3TextConfig,
}
FAMILIES = tuple(_CONFIGS)


def tiny_model(family: str, tied: bool = False) -> torch.nn.Module:
    sizes = dict(_SIZES)
    if family == "qwen2":  # its head_dim is always hidden / heads
        sizes |= {"hidden_size": 64}
    config = _CONFIGS[family](**sizes, tie_word_embeddings=tied)
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


def plan_for(config: PretrainedConfig, family: str, dtype: str = "fp32", weights: Weights | None = None) -> Plan:
    """A plan whose model is `config`'s; the rest is as small as can be."""
    architecture = ARCHITECTURES[family]
    model = Model(
        family=family,
        dtype=dtype,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        intermediate=config.intermediate_size,
        vocab=config.vocab_size,
        context=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        norm_offset=architecture.norm_offset,
        activation=architecture.activation,
        qkv_bias=architecture.qkv_bias,
        qk_norm=architecture.qk_norm,
        post_norms=architecture.post_norms,
        tie_embeddings=config.tie_word_embeddings,
        embed_scale=1.0,
        attention_scale=1.0,
        groups=(
            LayerGroup(name="full", layers=tuple(range(config.num_hidden_layers)), window=0, rope=Rope(theta=1e4)),
        ),
    )
    return Plan(
        name="tiny",
        model=model,
        weights=weights or Weights(kind="random"),
        attention=Attention(page_size=16, route="auto", split_tokens=16),
        pages=(),
        schedule=Schedule(
            max_batch=1,
            slow_rows=0,
            prefill_chunk=16,
            max_queued_requests=1,
            max_queued_tokens=1,
            max_requests=1,
            max_context=1,
            prefix_reuse=True,
            history_page=1,
            history_pages=1,
            programs=(),
        ),
        rings=Rings(transport="shm", rings=1, request_slots=1, token_slots=1, arena_words=1, bytes=1),
        offload=Offload(mode="off", host_budget=0, sparse_blocks=0),
        target=Target(
            name="cpu", kind="cpu", sm="", count=1, memory=1, read_bandwidth=1, flops=1, link_bandwidth=0, source=""
        ),
        memory=Memory(limit=1, weights=1, activations=1, logits=1, history=1, scheduler=1, recall=0, kv=1, free=1),
        serving=Serving(
            host="127.0.0.1",
            port=0,
            model_name="tiny",
            api_key_file="",
            max_body=1,
            drain=1,
            log="requests",
            tls_certificate="",
            tls_key="",
            chat_template="",
        ),
        parameters=1,
        weight_bytes=1,
        kv_bytes_per_token=1,
        floors=(),
    )
