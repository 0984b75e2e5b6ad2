"""From the start of the GPU engine's process to its first token, with random weights and with those of a checkpoint.

    python -m benchmarks.gpu_start [--spec benchmarks/specs/llama-8b-h200.yaml] [--folder FOLDER]

The checkpoint has the spec's shape and random values. It is written to FOLDER right before, and hashed by the build,
so that the page cache has it. Every start is told, the first of a kind too. What it takes falls into stages, which end
when the engine says its next line: imports and a context on the GPU, weights, capture of the step programs, one token.
"""

import json
import random
import struct
import tempfile
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import yaml

from benchmarks.gpu_engine import Engine, built, bundle_of, command_line, write
from benchmarks.machine import SEED
from benchmarks.model_folder import write_folder
from dualpace.engine.ring import SamplingParams
from dualpace.model.names import sources
from dualpace.model.weights import INDEX
from dualpace.plan.manifest import read_manifest
from dualpace.plan.plan import Model

STARTS = 3
_SHARD_BYTES = 4 << 30
# Of which all tensors are made, each from another place on.
_VALUES = 64 << 20
_STAGES = {"imported_s": (" weights",), "loaded_s": ("capturing",), "captured_s": ("ready on",)}
_HEADER_TYPES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}


def write_checkpoint(model: Model, folder: Path) -> int:
    """A checkpoint of `model`, a Llama, with random weights in shards; returns their size.

    Values are 16-bit numbers between 2^-7 and 2^-5 whatever the type, of both signs.
    """
    dice = random.Random(SEED)
    numbers = bytearray(dice.randbytes(_VALUES))
    # As bf16 a number of these is 0x3C.. or 0xBC..: the upper byte is the second one.
    numbers[1::2] = numbers[1::2].translate(bytes(0x3C | byte & 0x80 for byte in range(256)))
    values = memoryview(bytes(numbers))
    index: dict[str, str] = {}
    for number, shard in enumerate(_shards(model)):
        name = f"model-{number}.safetensors"
        _write_shard(folder / name, shard, _HEADER_TYPES[model.dtype], model.element_bytes, values)
        index |= dict.fromkeys(shard, name)
    (folder / INDEX).write_text(json.dumps({"weight_map": index}))
    write_folder(model, folder)
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _shards(model: Model) -> Iterator[dict[str, tuple[int, ...]]]:
    """Shapes by hub name, as many together as a shard has."""
    shard: dict[str, tuple[int, ...]] = {}
    held = 0
    for part in (part for parts in sources(model).values() for part in parts):
        held += prod(part.shape) * model.element_bytes
        if shard and held > _SHARD_BYTES:
            yield shard
            shard, held = {}, prod(part.shape) * model.element_bytes
        shard[part.name] = part.shape
    yield shard


def _write_shard(
    path: Path, shapes: Mapping[str, tuple[int, ...]], kind: str, element_bytes: int, values: memoryview
) -> None:
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + prod(shape) * element_bytes
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        at = 0
        while end > 0:
            piece = values[at : at + end]
            end -= file.write(piece)
            # Not the same values at the same place of every matrix.
            at = (at + 4096) % (len(values) // 2)


def checkpoint_spec(spec: Path, checkpoint: Path, to: Path) -> Path:
    """The spec with `checkpoint` instead of a shape and random weights, written to `to`."""
    text = yaml.safe_load(spec.read_text())
    model = text["model"]
    del model["weights"], model["shape"]
    model["path"] = str(checkpoint)
    to.write_text(yaml.safe_dump(text))
    return to


def start(bundle: Path, folder: Path) -> dict[str, float]:
    """Seconds from the start of the process to the end of each stage."""
    engine = Engine(bundle, folder)
    try:
        events = engine.run([list(range(64))], SamplingParams(max_tokens=1, temperature=0.0))
        (first, _), *_ = events[0]
        ready = engine.ready_s
    finally:
        engine.close()
    stages = {
        stage: next(at for at, line in engine.said if any(word in line for word in words))
        for stage, words in _STAGES.items()
    }
    return stages | {"ready_s": ready, "first_token_s": ready + first}


def line(kind: str, began: dict[str, float]) -> str:
    """A line of the table."""
    return f"{kind:10} " + "  ".join(f"{name.removesuffix('_s')} {seconds:6.2f} s" for name, seconds in began.items())


def main() -> None:
    """Build both bundles, start them, print a table and write the result file."""
    parser = command_line(__doc__.splitlines()[0], "gpu_start.json")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the checkpoint goes")
    arguments = parser.parse_args()
    kinds = []
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as shared,
        tempfile.TemporaryDirectory(dir=arguments.folder) as checkpoint,
    ):
        folder = Path(shared)
        bundles = {"random": bundle_of(arguments, folder)}
        size = write_checkpoint(read_manifest(bundles["random"]).plan.model, Path(checkpoint))
        spec = checkpoint_spec(arguments.spec, Path(checkpoint), folder / "checkpoint.yaml")
        bundles["checkpoint"] = built(spec, folder / "checkpoint")
        digest = read_manifest(bundles["random"]).digest
        for kind, bundle in bundles.items():
            starts = [start(bundle, folder) for _ in range(STARTS)]
            for each in starts:
                print(line(kind, each), flush=True)
            kinds.append({"weights": kind, "bytes": size, "starts": starts})
    write(arguments, digest, {"kinds": kinds})


if __name__ == "__main__":
    main()
