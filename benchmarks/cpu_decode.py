"""Decode speed of the CPU engine, served over its rings, beside transformers and the machine's read bandwidth.

    python -m benchmarks.cpu_decode [--threads N] [-o benchmarks/results/cpu_decode.json]

Builds specs/quickstart.yaml and measures its model. A step's time is the median interval between tokens. The bandwidth
is read right before and right after each figure, for a shared machine's varies; weight bytes over it is the floor.
Exit code 1 if a bar is missed: one row at 60% of the floor's rate, 8 rows at 3 times the rate of one.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.machine import host_machine, save
from dualpace.engine.ring import FrontendRing, SamplingParams
from dualpace.engine.threads import default_threads
from dualpace.plan.manifest import HOST_RING, Manifest, read_manifest

ROOT = Path(__file__).parents[1]
# Rows and tokens of context before the first token that is timed.
FIGURES = ((1, 128), (1, 4096), (8, 128))
STEPS = 64
WARM_UP = 4
# Tokens that no row comes to the end of while others are prefilled and timed.
LONG = 1024
BAR_OF_FLOOR = 0.6
BAR_OF_ROWS = 3.0

# Seconds of a step of so many rows at so much context.
Decode = Callable[[int, int], float]


def main() -> int:
    """Measure, print a table, write the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=default_threads(), metavar="N")
    parser.add_argument("-o", type=Path, default=ROOT / "benchmarks" / "results" / "cpu_decode.json", metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest = build(folder / "bundle")
        bandwidth = bandwidth_reader(folder, arguments.threads)
        with engine(folder, manifest, arguments.threads) as decode:
            figures = [measure("dualpace", decode, *figure, bandwidth, manifest) for figure in FIGURES]
        decode = transformers_decode(manifest, arguments.threads)
        figures += [measure("transformers", decode, *figure, bandwidth, manifest) for figure in FIGURES]
    one_row, long_row, rows = figures[: len(FIGURES)]
    bars = {
        "one row of floor": min(one_row["of_floor"], long_row["of_floor"]) >= BAR_OF_FLOOR,
        "8 rows over one": rows["tokens_per_s"] >= BAR_OF_ROWS * one_row["tokens_per_s"],
    }
    result = {
        "machine": host_machine("torch", "transformers"),
        "threads": arguments.threads,
        "spec": "specs/quickstart.yaml",
        "digest": manifest.digest,
        "weight_bytes": manifest.plan.weight_bytes,
        "figures": figures,
        "bars": bars,
    }
    save(result, arguments.o)
    print(table(figures))
    print(", ".join(f"{name}: {'met' if met else 'missed'}" for name, met in bars.items()))
    return 0 if all(bars.values()) else 1


def build(bundle: Path) -> Manifest:
    """Build the quickstart at `bundle`."""
    subprocess.run([sys.executable, ROOT / "scripts" / "quickstart_model.py"], check=True)
    command = [sys.executable, "-m", "dualpace.cli", "build", ROOT / "specs" / "quickstart.yaml", "-o", bundle]
    subprocess.run([*command, "--no-image"], check=True)
    return read_manifest(bundle)


def bandwidth_reader(folder: Path, threads: int) -> Callable[[], float]:
    """A function that reads the machine's bandwidth now, in bytes a second."""
    program = folder / "read_bandwidth"
    source = ROOT / "benchmarks" / "read_bandwidth.cpp"
    subprocess.run(["g++", "-O3", "-march=native", "-fopenmp", source, "-o", program], check=True)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}

    def read() -> float:
        done = subprocess.run([program], env=environment, check=True, capture_output=True, text=True)
        return float(done.stdout) * 1e9

    return read


@contextmanager
def engine(folder: Path, manifest: Manifest, threads: int) -> Iterator[Decode]:
    """The engine of the bundle in `folder`, driven over its rings."""
    bundle, rings = folder / "bundle", Path(tempfile.mktemp(dir="/dev/shm", prefix="dualpace-bench-"))
    command = [sys.executable, "-m", "dualpace.engine", bundle, "--rings", rings, "--threads", str(threads)]
    with subprocess.Popen(command) as process:
        try:
            while not rings.exists():
                if process.poll() is not None:
                    raise SystemExit("the engine ended early")
                time.sleep(0.05)
            ring = FrontendRing(bundle / HOST_RING, rings)
            while not ring.status().ready:
                time.sleep(0.05)
            yield lambda rows, context: step_seconds(ring, manifest.plan.model.vocab, rows, context)
            ring.close()
        finally:
            process.terminate()


def step_seconds(ring: FrontendRing, vocab: int, rows: int, context: int) -> float:
    """Median interval between tokens of the last row to begin, while all rows decode."""
    params = SamplingParams(max_tokens=LONG, temperature=0.0)
    for tag in range(rows):
        prompt = random.Random(f"{rows} {context} {tag}").choices(range(vocab // 2), k=context - WARM_UP)
        if not ring.submit(tag, prompt, params):
            raise SystemExit("the ring has no room")
    seen: dict[int, int] = {}
    times = []
    while len(times) <= STEPS + WARM_UP:
        for event in ring.wait(1.0):
            if event.finish:
                raise SystemExit(f"row {event.tag} ended early: {event.finish.name}")
            seen[event.tag] = event.index
            if event.tag == rows - 1 and len(seen) == rows:
                times.append(time.perf_counter())
    for tag in range(rows):
        ring.abort(tag)
    while seen:
        for event in ring.wait(1.0):
            if event.finish:
                del seen[event.tag]
    return statistics.median(b - a for a, b in zip(times[WARM_UP:], times[WARM_UP + 1 :], strict=False))


def transformers_decode(manifest: Manifest, threads: int) -> Decode:
    """Steps of transformers' model with the same weights and dtype, greedy, with its default attention."""
    import torch
    from transformers import DynamicCache, Gemma3ForCausalLM, Gemma3TextConfig, GenerationConfig

    torch.set_num_threads(threads)
    model = manifest.plan.model
    config = Gemma3TextConfig(
        vocab_size=model.vocab,
        hidden_size=model.hidden,
        intermediate_size=model.intermediate,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim,
        query_pre_attn_scalar=round(model.attention_scale**-2),
        sliding_window=max(group.window for group in model.groups),
        layer_types=[f"{model.groups[model.group_of(layer)].name}_attention" for layer in range(model.layers)],
    )
    assert manifest.weights
    reference = Gemma3ForCausalLM.from_pretrained(
        manifest.weights.folder, config=config, generation_config=GenerationConfig(), dtype=torch.bfloat16
    )

    @torch.inference_mode()
    def decode(rows: int, context: int) -> float:
        tokens = torch.randint(model.vocab // 2, (rows, context))
        cache = DynamicCache(config=config)
        reference(tokens, past_key_values=cache, logits_to_keep=1)
        times = []
        token = tokens[:, -1:]
        for _ in range(STEPS // 2):
            start = time.perf_counter()
            token = reference(token, past_key_values=cache).logits[:, -1:].argmax(-1)
            times.append(time.perf_counter() - start)
        return statistics.median(times[WARM_UP:])

    return decode


def measure(
    what: str, decode: Decode, rows: int, context: int, bandwidth: Callable[[], float], manifest: Manifest
) -> dict[str, Any]:
    """One figure, with the bandwidth around it."""
    print(f"measuring {what}, {rows} rows at {context} tokens", file=sys.stderr)
    before = bandwidth()
    seconds = decode(rows, context)
    around = (before + bandwidth()) / 2
    return {
        "engine": what,
        "rows": rows,
        "context": context,
        "step_ms": seconds * 1e3,
        "tokens_per_s": rows / seconds,
        "bandwidth_GB_s": around / 1e9,
        "of_floor": manifest.plan.weight_bytes / around / seconds,
    }


def table(figures: list[dict[str, Any]]) -> str:
    """The figures as a Markdown table."""
    lines = ["| engine | rows | context | step ms | tokens/s | read GB/s | of floor |", "| --- " * 7 + "|"]
    lines += [
        f"| {f['engine']} | {f['rows']} | {f['context']:,} | {f['step_ms']:.1f} | {f['tokens_per_s']:.1f} "
        f"| {f['bandwidth_GB_s']:.1f} | {f['of_floor']:.0%} |"
        for f in figures
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
