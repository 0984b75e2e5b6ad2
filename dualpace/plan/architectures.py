"""The architecture table: what each family computes and what its checkpoints call things.

One row a family; everything that differs between families stands here as data. Tensor names are those of the family's
safetensors on the model hub. Sources: each family's published configuration and modelling code.
"""

from typing import Literal

from dualpace.frozen import Frozen
from dualpace.plan.plan import DType

# Engine name of a layer's tensor -> checkpoint names that are stacked on dim 0 to make it.
# {p} is the layer's prefix.
LAYER_TENSORS: dict[str, tuple[str, ...]] = {
    "attn_norm": ("{p}.input_layernorm.weight",),
    "qkv": ("{p}.self_attn.q_proj.weight", "{p}.self_attn.k_proj.weight", "{p}.self_attn.v_proj.weight"),
    "o": ("{p}.self_attn.o_proj.weight",),
    "mlp_norm": ("{p}.post_attention_layernorm.weight",),
    "gate_up": ("{p}.mlp.gate_proj.weight", "{p}.mlp.up_proj.weight"),
    "down": ("{p}.mlp.down_proj.weight",),
}
QKV_BIAS = {"qkv_bias": ("{p}.self_attn.q_proj.bias", "{p}.self_attn.k_proj.bias", "{p}.self_attn.v_proj.bias")}
QK_NORM = {"q_norm": ("{p}.self_attn.q_norm.weight",), "k_norm": ("{p}.self_attn.k_norm.weight",)}
SANDWICH_NORMS = {
    "post_attn_norm": ("{p}.post_attention_layernorm.weight",),
    "mlp_norm": ("{p}.pre_feedforward_layernorm.weight",),
    "post_mlp_norm": ("{p}.post_feedforward_layernorm.weight",),
}


class Architecture(Frozen):
    """What a family computes. `norm_offset` is added to every norm weight; `softcap`: its attention may have one.

    `default_pattern` (every n-th layer has full attention), `rope_theta`, `local_theta` (of layers with a window) and
    `tie_embeddings` hold where neither the checkpoint nor the shape says otherwise.
    """

    family: str
    model_types: tuple[str, ...]
    class_names: tuple[str, ...]
    activation: Literal["silu", "gelu_tanh"] = "silu"
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    norm_offset: float = 0.0
    scaled_embedding: bool = False
    sliding: bool = False
    softcap: bool = False
    default_pattern: int = 1
    rope_theta: float = 10000.0
    local_theta: float | None = None
    tie_embeddings: bool = False
    dtypes: tuple[DType, ...] = ("bf16", "fp16", "fp32")

    def layer_tensors(self) -> dict[str, tuple[str, ...]]:
        """Engine tensor name -> checkpoint name patterns, for one layer."""
        tensors = dict(LAYER_TENSORS)
        if self.qkv_bias:
            tensors |= QKV_BIAS
        if self.qk_norm:
            tensors |= QK_NORM
        if self.post_norms:
            tensors |= SANDWICH_NORMS
        return tensors


# `dtypes` leaves out fp16 where activations are known to overflow it (Gemma).
ARCHITECTURES: dict[str, Architecture] = {
    a.family: a
    for a in (
        Architecture(family="llama", model_types=("llama",), class_names=("LlamaForCausalLM",)),
        Architecture(family="mistral", model_types=("mistral",), class_names=("MistralForCausalLM",), sliding=True),
        Architecture(
            family="qwen2",
            model_types=("qwen2",),
            class_names=("Qwen2ForCausalLM",),
            qkv_bias=True,
        ),
        Architecture(family="qwen3", model_types=("qwen3",), class_names=("Qwen3ForCausalLM",), qk_norm=True),
        Architecture(
            family="gemma2",
            model_types=("gemma2",),
            class_names=("Gemma2ForCausalLM",),
            activation="gelu_tanh",
            post_norms=True,
            norm_offset=1.0,
            scaled_embedding=True,
            sliding=True,
            softcap=True,
            default_pattern=2,
            tie_embeddings=True,
            dtypes=("bf16", "fp32"),
        ),
        Architecture(
            family="gemma3",
            model_types=("gemma3_text", "gemma3"),
            class_names=("Gemma3ForCausalLM",),
            activation="gelu_tanh",
            qk_norm=True,
            post_norms=True,
            norm_offset=1.0,
            scaled_embedding=True,
            sliding=True,
            default_pattern=6,
            rope_theta=1e6,
            local_theta=10000.0,
            tie_embeddings=True,
            dtypes=("bf16", "fp32"),
        ),
    )
}
