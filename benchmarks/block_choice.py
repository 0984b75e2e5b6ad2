"""How much of attention the blocks hold that key summaries choose, on a real model and a long text.

    python -m benchmarks.block_choice [-o benchmarks/results/block_choice.json] [--trace benchmarks/traces/blocks.json]

Runs the quickstart's model on the CPU engine over English text, and looks at the full-attention layers: what of each
token's attention lies in the blocks that it would attend to, at budgets of 5, 10 and 20% of the blocks, the first ones
and the last ones among them (docs/offload.md). One head chooses for all heads, or the heads of a KV head together (this
model has one), or each head for itself; by the mean of a block's keys, by the least and greatest of them, or by these
halfway to the mean. Beside them: the last blocks only, and the best choice for all heads that there is. A layer's head
is the one that keeps most at a tenth of the blocks in the first half of the text, and is judged on the second half.

With `--trace`, instead, what the text's last tokens choose one after the other, by the heads of a KV head together,
goes into a file that benchmarks.gpu_recall replays.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from pydoc_data.topics import topics
from statistics import mean
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer

from benchmarks.cpu_decode import ROOT, build
from benchmarks.machine import host_machine, save
from dualpace import __version__
from dualpace.engine.executor import Executor
from dualpace.engine.kernels import Kernels
from dualpace.engine.provision import weights
from dualpace.plan import recall
from dualpace.plan.manifest import HOST_ENGINE, TOKENIZER
from dualpace.plan.plan import Plan
from dualpace.plan.program import Op
from tests.engine.rows import Rows

TOKENS = 8000
# Heads are chosen at some contexts, for one budget, and judged at others.
CALIBRATED, CALIBRATED_AT = (2000, 4000), 0.1
CONTEXTS, BUDGETS = (6000, 8000), (0.05, 0.1, 0.2)
# Widths of the box of a block's keys about their mean.
SUMMARIES = {"mean": 0.0, "bound": 1.0, "halfway": 0.5}
# Tokens that are looked at before each context, and the distance from one to the next.
SEEN, STRIDE = 480, 15
TRACED, TRACED_BLOCKS = 256, 62  # tokens of the trace, and what each chooses, an eighth


class Recorder(Executor):
    """An executor that keeps the queries of full-attention layers, rotated and scaled, and by position."""

    def __init__(self, plan: Plan, *arguments: Any) -> None:
        model = plan.model
        self.full = [layer for layer in range(model.layers) if not model.groups[model.group_of(layer)].window]
        shape = (plan.schedule.max_context, model.heads, model.head_dim)
        self.queries = {layer: torch.empty(shape) for layer in self.full}
        super().__init__(plan, *arguments)

    def _attention(self, op: Op) -> Callable[[], Any]:
        attend, model = super()._attention(op), self._plan.model
        if op.layer not in self.full:
            return attend

        def call() -> None:
            attend()
            begin, count = self._batch.position[0], self._batch.tokens
            queries = self.buffers[op.inputs[0]][:count, : model.heads * model.head_dim]
            self.queries[op.layer][begin : begin + count] = queries.view(count, *self.queries[op.layer].shape[1:])
            self.queries[op.layer][begin : begin + count] *= model.attention_scale

        return call


class Row(Rows):
    """One row of the recorder, whose logits nobody wants."""

    def _open(self, weights: Mapping[str, torch.Tensor], kernels: Kernels) -> Recorder:
        return Recorder(self._plan, weights, kernels, self.step_address)

    def _logits(self, chunks: Any) -> dict[int, torch.Tensor]:
        return {}

    @property
    def recorder(self) -> Recorder:
        """What ran the row."""
        recorder: Recorder = self._executor
        return recorder

    def keys(self, layer: int) -> torch.Tensor:
        """The keys of a layer, [token][KV head][element]."""
        pages = self.pages(self._plan.model.group_of(layer))
        keys = self._executor.pools[layer][pages, 0].float()
        return keys.transpose(1, 2).reshape(-1, *keys.shape[1::2])[: self.lengths[0]]


class Layer(NamedTuple):
    """A layer's `queries` [token][head][element] and `keys` [token][element], which all heads share."""

    queries: torch.Tensor
    keys: torch.Tensor


class Seen(NamedTuple):
    """What a token may choose, one of `blocks` its row has, but for the `kept` share of attention that it always has.

    `mass` [head][block] is the share of attention in each, `scores` [head][block] by summary what it promises.
    """

    mass: torch.Tensor
    kept: torch.Tensor
    scores: dict[str, torch.Tensor]
    blocks: int


def seen(layer: Layer, position: int, size: int) -> Seen:
    """What the token at `position` sees."""
    query, keys = layer.queries[position], layer.keys[: position + 1]
    first, last = recall.sinks(size), position // size + 1 - recall.recent(size)
    weights = (query @ keys.T).softmax(-1)
    mass = weights[:, first * size : last * size].view(len(query), last - first, size).sum(-1)
    blocks = keys[first * size : last * size].view(last - first, size, -1)
    scores = {name: promise(query, blocks, width) for name, width in SUMMARIES.items()}
    return Seen(mass, 1 - mass.sum(-1), scores, position // size + 1)


def promise(query: torch.Tensor, blocks: torch.Tensor, width: float) -> torch.Tensor:
    """The most that a key in a block's box comes to, shrunk to `width` about the mean of its keys: [head][block]."""
    mean = blocks.mean(1)
    least, greatest = (mean + width * (end - mean) for end in (blocks.amin(1), blocks.amax(1)))
    return torch.maximum(query[:, None] * least, query[:, None] * greatest).sum(-1)


def of_head(scores: torch.Tensor, head: int) -> torch.Tensor:
    """One head's choice, for all."""
    return scores[head : head + 1].expand_as(scores)


def chosen_mass(found: Seen, scores: torch.Tensor, share: float, always: int) -> float:
    """The share of attention in what is attended to when `share` of the row's blocks is, by `scores` [head][block]."""
    count = min(max(int(share * found.blocks) - always, 1), scores.shape[1])
    best = scores.topk(count, -1).indices
    return float((found.kept + found.mass.gather(1, best).sum(-1)).mean())


def choices(found: Seen, heads: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Scores by the way of choosing, `heads` being the layer's own by summary."""
    latest = torch.arange(found.mass.shape[1]).float()
    return {
        "last blocks": latest.expand_as(found.mass),
        **{f"one head, {name}": of_head(scores, heads[name]) for name, scores in found.scores.items()},
        "one KV head, halfway": found.scores["halfway"].sum(0).expand_as(found.mass),
        "each head, halfway": found.scores["halfway"],
        "best for all": found.mass.sum(0).expand_as(found.mass),
    }


def measure(layers: Mapping[int, Layer], size: int) -> dict[str, Any]:
    """Each layer's head by summary, and the mean share kept by context, budget, way of choosing and layer."""
    always = recall.sinks(size) + recall.recent(size)

    def tokens(layer: Layer, context: int) -> list[Seen]:
        return [seen(layer, position, size) for position in range(context - SEEN, context, STRIDE)]

    def best_head(some: list[Seen], name: str) -> int:
        def kept(head: int) -> float:
            return mean(chosen_mass(each, of_head(each.scores[name], head), CALIBRATED_AT, always) for each in some)

        return max(range(len(some[0].mass)), key=kept)

    heads: dict[int, dict[str, int]] = {}
    for number, layer in layers.items():
        some = [each for context in CALIBRATED for each in tokens(layer, context)]
        heads[number] = {name: best_head(some, name) for name in SUMMARIES}
    results = []
    for context in CONTEXTS:
        found = {number: tokens(layer, context) for number, layer in layers.items()}
        for share in BUDGETS:
            kept: dict[str, dict[int, float]] = {}
            for number, some in found.items():
                masses: dict[str, list[float]] = {}
                for each in some:
                    for way, scores in choices(each, heads[number]).items():
                        masses.setdefault(way, []).append(chosen_mass(each, scores, share, always))
                for way, shares in masses.items():
                    kept.setdefault(way, {})[number] = mean(shares)
            results.append({"context": context, "share": share, "kept": kept})
    return {"heads": heads, "results": results}


def trace(layer: Layer, size: int) -> list[list[int]]:
    """What each of the text's last TRACED tokens chooses that the one before it did not: pages, by number.

    What that one alone chose follows, as -1 - page.
    """
    first, steps, held = recall.sinks(size), [], set[int]()
    for position in range(len(layer.keys) - TRACED, len(layer.keys)):
        found = seen(layer, position, size)
        best = found.scores["halfway"].sum(0).topk(TRACED_BLOCKS).indices
        chosen = {first + page for page in best.tolist()}
        steps.append(sorted(chosen - held) + [-1 - page for page in sorted(held - chosen)])
        held = chosen
    return steps


def main() -> None:
    """Measure, print, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", type=Path, default=ROOT / "benchmarks" / "results" / "block_choice.json", metavar="FILE")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="record what the last tokens choose, and no more")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        bundle = Path(name) / "bundle"
        manifest = build(bundle)
        plan = manifest.plan
        text = "\n\n".join(topics[topic] for topic in sorted(topics))
        tokens = Tokenizer.from_file(str(bundle / TOKENIZER)).encode(text).ids[:TOKENS]
        row = Row(plan, weights(manifest, "cpu", lambda said: None, lambda: False), Kernels(bundle / HOST_ENGINE))
        chunk = plan.schedule.prefill_chunk
        for begin in range(0, len(tokens), chunk):
            row.feed({0: tokens[begin : begin + chunk]})
        layers = {layer: Layer(row.recorder.queries[layer], row.keys(layer)[:, 0]) for layer in row.recorder.full}
        if arguments.trace:
            traces = {number: trace(layer, plan.attention.page_size) for number, layer in layers.items()}
            recorded = {"dualpace": __version__, "model": plan.name, "tokens": len(tokens), "layers": traces}
            arguments.trace.write_text(json.dumps(recorded, separators=(",", ":")) + "\n")
            return
        figures = measure(layers, plan.attention.page_size)
    report = {"machine": host_machine("torch"), "model": plan.name, "tokens": len(tokens), **figures}
    save(report, arguments.o)
    for each in figures["results"]:
        line = ", ".join(f"{way} {sum(kept.values()) / len(kept):.3f}" for way, kept in each["kept"].items())
        print(f"{each['context']} tokens, {each['share']:.0%} of the blocks: {line}")


if __name__ == "__main__":
    main()
