"""The weight table: engine tensor names and shapes, and the checkpoint tensors that each is stacked from."""

from typing import NamedTuple

from dualpace.plan.architectures import ARCHITECTURES
from dualpace.plan.plan import Model

EMBED = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


class Part(NamedTuple):
    """A checkpoint tensor by its hub name and shape."""

    name: str
    shape: tuple[int, ...]


class Prefix(NamedTuple):
    """What a checkpoint writes before the decoder's tensors in place of `model.`, and before `lm_head`."""

    body: str
    head: str

    def actual(self, name: str) -> str:
        """The name in this checkpoint of the tensor that the hub calls `name`."""
        return self.body + name.removeprefix("model.") if name.startswith("model.") else self.head + name


# A whole language model, a bare decoder, and the two ways of naming the text model of a multimodal checkpoint.
PREFIXES = (
    Prefix("model.", ""),
    Prefix("", ""),
    Prefix("language_model.model.", "language_model."),
    Prefix("model.language_model.", ""),
)


def _layer_shapes(model: Model) -> dict[str, tuple[tuple[int, ...], ...]]:
    hidden, wide, head = model.hidden, model.intermediate, model.head_dim
    q, kv = model.heads * head, model.kv_heads * head
    return {
        "attn_norm": ((hidden,),),
        "qkv": ((q, hidden), (kv, hidden), (kv, hidden)),
        "qkv_bias": ((q,), (kv,), (kv,)),
        "q_norm": ((head,),),
        "k_norm": ((head,),),
        "o": ((hidden, q),),
        "post_attn_norm": ((hidden,),),
        "mlp_norm": ((hidden,),),
        "gate_up": ((wide, hidden), (wide, hidden)),
        "down": ((hidden, wide),),
        "post_mlp_norm": ((hidden,),),
    }


def sources(model: Model) -> dict[str, tuple[Part, ...]]:
    """Engine tensor name -> the checkpoint tensors stacked on dim 0 to make it. A tied head is not listed."""
    shapes = _layer_shapes(model)
    patterns = ARCHITECTURES[model.family].layer_tensors()
    table: dict[str, tuple[Part, ...]] = {"embed": (Part(EMBED, (model.vocab, model.hidden)),)}
    for layer in range(model.layers):
        prefix = f"model.layers.{layer}"
        for tensor, names in patterns.items():
            parts = zip(names, shapes[tensor], strict=True)
            table[f"layers.{layer}.{tensor}"] = tuple(Part(name.format(p=prefix), shape) for name, shape in parts)
    table["final_norm"] = (Part("model.norm.weight", (model.hidden,)),)
    if not model.tie_embeddings:
        table["head"] = (Part(HEAD, (model.vocab, model.hidden)),)
    return table


def stacked_shape(parts: tuple[Part, ...]) -> tuple[int, ...]:
    """Shape of `parts` stacked on dim 0."""
    return (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
