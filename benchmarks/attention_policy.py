"""Calibrates attention for every layer of benchmarks.attention_kernels, and measures what the device then chooses.

    python -m benchmarks.attention_policy [-o benchmarks/results/attention_policy.json] [--calibration h200.json]

For each layer the constants of the cost model are fitted to timed batches, as `dualpace calibrate` does, and the route
that they choose is compared with the fastest of each batch. For the first layer the list builder is compiled with its
constants, and the contexts of benchmarks/traces/decode.json are measured by every single route and by the device's own
choice. `--calibration` is what dualpace/plan/calibrations holds.
"""

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.attention_kernels import SHAPES, TRACES, compile_attention, compile_list_builder, layer_plan
from benchmarks.machine import save
from dualpace.build.store import Store
from dualpace.engine.calibrate import LAYERS, Layer, Sample, batches, constants, graph_seconds, machine, samples
from dualpace.engine.device import Cubin
from dualpace.engine.route_fit import relative_error
from dualpace.plan.attention_cost import route_seconds, split_sizes
from dualpace.plan.calibration import CalibratedLayer, Calibration
from dualpace.plan.plan import AttentionPolicy
from dualpace.plan.resolve import WORTHWHILE_GAIN
from dualpace.plan.structs import Route
from dualpace.plan.targets import GPUS

TARGET = "h200"
IDLE_ROWS = 8


def policy_of(layer: CalibratedLayer) -> AttentionPolicy:
    """What a plan for that layer decides by."""
    worthwhile = layer.flashinfer_gain > WORTHWHILE_GAIN
    return AttentionPolicy(
        source="this machine",
        measured=True,
        ctas=layer.ctas,
        own=layer.own,
        flashinfer_ctas=layer.flashinfer_ctas,
        flashinfer=layer.flashinfer if worthwhile else None,
        flashinfer_gain=layer.flashinfer_gain,
    )


def by_every_route(layer: Layer, chooser: Layer, contexts: list[int]) -> dict[str, Any]:
    """Seconds of a layer by each single route and split size, by the device's choice, and of the lists."""
    step, chosen = layer.step(contexts), chooser.step(contexts)
    sizes = split_sizes(layer.plan.attention.split_tokens, max(contexts))
    single = {f"split {size}": layer.seconds(step, contexts, Route.SPLIT, size) for size in sizes}
    single |= {
        route.name.lower(): layer.seconds(step, contexts, route) for route in layer.routes if route is not Route.SPLIT
    }
    seconds = chooser.seconds(chosen, contexts, Route.AUTO)
    work = chooser.work(chosen)
    return {
        "single_s": single,
        "auto_s": seconds,
        "route": Route(work.route).name.lower(),
        "split_tokens": work.split_tokens,
        "items": work.items,
        "bytes": work.bytes,
        "merge_bytes": work.merge_bytes,
        "auto_list_s": chooser.list_seconds(chosen, Route.AUTO),
        "workqueue_list_s": layer.list_seconds(step, Route.WORKQUEUE),
    }


def idle_seconds(layer: Layer) -> float:
    """What a layer takes longer when the kernel of the route that is not taken is launched too."""
    contexts = [4096] * IDLE_ROWS
    step, pools = layer.step(contexts), layer.pools(contexts)
    layer.list_tasks(step, Route.WORKQUEUE)

    def attend(routes: Sequence[Route]) -> None:
        for pool in pools:
            for route in routes:
                layer.attend(step, IDLE_ROWS, route, [pool])

    alone, both = graph_seconds(
        [lambda: attend([Route.WORKQUEUE]), lambda: attend([Route.WORKQUEUE, Route.FLASHINFER])]
    )
    return (both - alone) / len(pools)


def measure(layer: Layer, every: int) -> tuple[CalibratedLayer, dict[str, Any]]:
    """The calibration of a layer from each `every`-th batch, and how good it is on these."""
    plan = layer.plan
    chosen = islice(batches(plan.schedule.max_context, plan.schedule.max_batch, 0), 0, None, every)
    found = list(samples(layer, chosen))
    known = constants(layer, found)
    own = [sample.measured for sample in found if sample.route is not Route.FLASHINFER]
    theirs = [sample.measured for sample in found if sample.route is Route.FLASHINFER]
    errors = {"own": relative_error(known.own, own)}
    if known.flashinfer is not None:
        errors["flashinfer"] = relative_error(known.flashinfer, theirs)
    losses = list(lost(policy_of(known), found))
    figures = {
        "layer": known.model_dump(),
        "samples": len(found),
        "fit_error": errors,
        "lost": {"mean": statistics.mean(losses), "most": max(losses)},
    }
    return known, figures


def lost(policy: AttentionPolicy, found: list[Sample]) -> Iterator[float]:
    """By how much of its time the route that `policy` takes for a batch is slower than the fastest that was timed."""
    by_batch: dict[tuple[int, ...], list[Sample]] = {}
    for sample in found:
        by_batch.setdefault(tuple(sample.contexts), []).append(sample)
    for batch in by_batch.values():
        priced = [
            (route_seconds(cost, sample.measured.work), sample.measured.seconds)
            for sample in batch
            if (cost := policy.flashinfer if sample.route is Route.FLASHINFER else policy.own)
        ]
        yield min(priced)[1] / min(sample.measured.seconds for sample in batch) - 1


def line(trace: str, figures: dict[str, Any]) -> str:
    """A line of a trace."""
    best = min(figures["single_s"], key=lambda route: figures["single_s"][route])
    seconds = figures["single_s"][best]
    return (
        f"{trace:15} auto {figures['auto_s'] * 1e6:6.1f} us {figures['route']:10} {figures['split_tokens']:6}  "
        f"best {seconds * 1e6:6.1f} us {best:12} {figures['auto_s'] / seconds - 1:+.1%}  "
        f"list {figures['auto_list_s'] * 1e6:4.1f} us for {figures['workqueue_list_s'] * 1e6:4.1f}"
    )


def summary(name: str, figures: dict[str, Any]) -> str:
    """A line of a layer."""
    own, errors, slower = figures["layer"]["own"], figures["fit_error"], figures["lost"]
    return (
        f"{name:8} fitted to {errors['own']:.1%}, FlashInfer's to {errors.get('flashinfer', 0):.1%}; "
        f"lost {slower['mean']:.2%}, at most {slower['most']:.1%}; "
        f"FlashInfer's gains {figures['layer']['flashinfer_gain']:.1%}; "
        f"start {own['start'] * 1e6:.1f} us, merge {own['merge'] * 1e9:.0f} ns"
    )


def main() -> None:
    """Measure every layer, print a table and write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmarks/results/attention_policy.json"))
    parser.add_argument("--calibration", type=Path, metavar="FILE", help="where the constants go too")
    parser.add_argument("--store", type=Path, default=Path("build/store"), help="folder of compiled kernels")
    parser.add_argument("--kernels", type=Path, metavar="FOLDER", help="what benchmarks.attention_kernels made")
    parser.add_argument(
        "--every", type=int, default=1, help="measure each so manieth batch of all layers but the first"
    )
    parser.add_argument("--resume", action="store_true", help="keep the layers that the result file has")
    arguments = parser.parse_args()
    store, plans = Store(arguments.store.absolute()), [layer_plan(*shape) for shape in SHAPES]
    if arguments.kernels:
        files = [arguments.kernels / f"{plan.name}.cubin" for plan in plans]
    else:
        with ThreadPoolExecutor() as pool:
            files = list(pool.map(lambda plan: compile_attention(plan, store), plans))
    results: dict[str, Any] = {}
    if arguments.resume:
        results = json.loads(arguments.output.read_text(encoding="utf-8"))["results"]
    for plan, kernels in zip(plans, files, strict=True):
        if plan.name in results:
            continue
        layer = Layer(plan, Cubin(kernels))
        known, figures = measure(layer, arguments.every if results else 1)
        if not results:
            lists = compile_list_builder(plan.model_copy(update={"policy": policy_of(known)}), store)
            chooser = layer.with_lists(Cubin(lists))
            figures["idle_s"] = idle_seconds(layer)
            figures["traces"] = {trace: by_every_route(layer, chooser, contexts) for trace, contexts in TRACES.items()}
            for trace, measured in figures["traces"].items():
                print(line(trace, measured), flush=True)
        results[plan.name] = figures
        print(summary(plan.name, figures), flush=True)
        _write(arguments, results)
        del layer
        torch.cuda.empty_cache()


def _write(arguments: argparse.Namespace, results: dict[str, Any]) -> None:
    report = {"machine": machine(), "layers_of_a_graph": LAYERS, "results": results}
    save(report, arguments.output)
    if arguments.calibration:
        layers = tuple(CalibratedLayer.model_validate(result["layer"]) for result in results.values())
        found = Calibration(
            target=TARGET, read_bandwidth=GPUS[TARGET].read_bandwidth, machine=report["machine"], layers=layers
        )
        arguments.calibration.write_text(found.model_dump_json(indent=1) + "\n")


if __name__ == "__main__":
    main()
