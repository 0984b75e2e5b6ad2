"""Random weights of the true shape."""

import torch

from dualpace.model.names import sources
from dualpace.model.random import random_weights
from dualpace.plan.plan import Weights

from .plans import FAMILIES, plan_for, tiny_model


def plan_with_seed(family, seed, tied=False):
    config = tiny_model(family, tied).config
    return plan_for(config, family, weights=Weights(kind="random", seed=seed))


def test_a_tensor_depends_on_its_name_and_the_seed_alone():
    first, again = (random_weights(plan_with_seed("llama", 7)) for _ in range(2))
    other = random_weights(plan_with_seed("llama", 8))
    shallow = plan_with_seed("llama", 7)
    shallow = random_weights(shallow.model_copy(update={"model": shallow.model.model_copy(update={"layers": 1})}))
    for name, tensor in first.items():
        assert torch.equal(tensor, again[name])
        assert not torch.equal(tensor, other[name])
        assert name not in shallow or torch.equal(tensor, shallow[name])
    assert not torch.equal(first["layers.0.qkv"], first["layers.1.qkv"])


def test_a_tied_head_is_the_embedding_itself():
    table = random_weights(plan_with_seed("gemma3", 0, tied=True))
    assert table["head"] is table["embed"]


def test_every_family_runs_on_them_with_logits_of_about_unit_size():
    for family in FAMILIES:
        model = tiny_model(family)
        plan = plan_for(model.config, family, weights=Weights(kind="random", seed=0))
        table = random_weights(plan)
        hub = {}
        for name, parts in sources(plan.model).items():
            rows = table[name].split([part.shape[0] for part in parts])
            hub |= {part.name: tensor for part, tensor in zip(parts, rows, strict=True)}
        model.load_state_dict(hub)
        with torch.no_grad():
            logits = model(torch.arange(32)[None]).logits
        assert 0.3 < logits.std() < 3, family
