"""A step program as data: the operations of one forward pass over named buffers and the table of layer weights.

The CPU engine interprets it, graph capture walks it. Buffers are named, never addressed; `weights` name entries of the
weight table (`layers.3.qkv`); `layer` is -1 outside the layers. T is the step's tokens, S its samples (see `buffers`).
"""

from dualpace.frozen import Frozen
from dualpace.plan.plan import Model, Program

# Rows up to which products on a GPU are our own; `python -m benchmarks.gpu_linear` times them beside cuBLAS's.
STREAMED_ROWS = 16


class Op(Frozen):
    """One operation: reads `inputs`, writes `outputs`. An output named in `inputs` is updated in place."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[str, ...] = ()
    layer: int = -1


def buffers(model: Model) -> dict[str, tuple[str, int]]:
    """Activation buffers: name -> (leading dimension "T" or "S", elements of a row)."""
    heads = model.heads + 2 * model.kv_heads
    return {
        "residual": ("T", model.hidden),
        "x": ("T", model.hidden),
        "qkv": ("T", heads * model.head_dim),
        "attn": ("T", model.heads * model.head_dim),
        "y": ("T", model.hidden),
        "gate_up": ("T", 2 * model.intermediate),
        "act": ("T", model.intermediate),
        "last": ("S", model.hidden),
        "logits": ("S", model.vocab),
    }


def _layer(model: Model, layer: int) -> list[Op]:
    def weight(*names: str) -> tuple[str, ...]:
        return tuple(f"layers.{layer}.{name}" for name in names)

    qk_norms = weight("q_norm", "k_norm") if model.qk_norm else ()
    qkv_weights = weight("qkv", "qkv_bias") if model.qkv_bias else weight("qkv")
    ops = [
        Op(kind="linear", inputs=("x",), outputs=("qkv",), weights=qkv_weights, layer=layer),
        Op(kind="rope_append", inputs=("qkv",), outputs=("qkv", "kv"), weights=qk_norms, layer=layer),
        Op(kind="attention", inputs=("qkv", "kv"), outputs=("attn",), layer=layer),
        Op(kind="linear", inputs=("attn",), outputs=("y",), weights=weight("o"), layer=layer),
    ]
    if model.post_norms:
        ops.append(Op(kind="norm", inputs=("y",), outputs=("y",), weights=weight("post_attn_norm"), layer=layer))
    ops += [
        Op(
            kind="add_norm",
            inputs=("residual", "y"),
            outputs=("residual", "x"),
            weights=weight("mlp_norm"),
            layer=layer,
        ),
        Op(kind="linear", inputs=("x",), outputs=("gate_up",), weights=weight("gate_up"), layer=layer),
        Op(kind="gate", inputs=("gate_up",), outputs=("act",), layer=layer),
        Op(kind="linear", inputs=("act",), outputs=("y",), weights=weight("down"), layer=layer),
    ]
    if model.post_norms:
        ops.append(Op(kind="norm", inputs=("y",), outputs=("y",), weights=weight("post_mlp_norm"), layer=layer))
    following = f"layers.{layer + 1}.attn_norm" if layer + 1 < model.layers else "final_norm"
    ops.append(
        Op(kind="add_norm", inputs=("residual", "y"), outputs=("residual", "x"), weights=(following,), layer=layer)
    )
    return ops


def step_program(model: Model) -> tuple[Op, ...]:
    """The forward pass of one step, from token ids to sampled tokens."""
    ops = [
        Op(kind="embed", inputs=("tokens",), outputs=("residual",), weights=("embed",)),
        Op(kind="norm", inputs=("residual",), outputs=("x",), weights=("layers.0.attn_norm",)),
    ]
    for layer in range(model.layers):
        ops += _layer(model, layer)
    ops += [
        Op(kind="gather", inputs=("x", "sample_index"), outputs=("last",)),
        Op(kind="linear", inputs=("last",), outputs=("logits",), weights=("head",)),
        Op(kind="sample", inputs=("logits",), outputs=("sampled",)),
    ]
    return tuple(ops)


def streams(model: Model, program: Program) -> bool:
    """Whether the products of `program` on a GPU are ours, with what follows them done on the way."""
    return program.kind == "decode" and program.rows <= STREAMED_ROWS and model.element_bytes == 2


def rotates(model: Model) -> bool:
    """Whether such a product of qkv rotates queries and keys and appends them; a norm of a head has to come before."""
    return not model.qk_norm and model.head_dim % 16 == 0


def defers_norms(model: Model) -> bool:
    """Whether such products leave a norm's division to the next. fp16 has not the range of the residual."""
    return model.dtype == "bf16" and not model.post_norms
