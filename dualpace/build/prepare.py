"""The model's part of a bundle: tokenizer, chat template, generation defaults, and where the weights are.

The work needs torch and tokenizers, so `dualpace.model.prepare` does it in a process of its own, and only when its
inputs are new.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from dualpace.build.errors import BuildError
from dualpace.build.progress import Progress
from dualpace.build.store import Store, digest
from dualpace.plan.manifest import GENERATION, File, Generation, WeightFiles
from dualpace.plan.plan import Plan, Weights

PREPARE = "dualpace.model.prepare"
NEEDS = ("tokenizers", "torch")
MODEL = "model"
RESULT = "result.json"


def prepare_model(plan: Plan, store: Store, progress: Progress) -> tuple[Path, WeightFiles | None]:
    """The folder that becomes `model/` of the bundle, and the weight files with their hashes; None for random weights.

    A checkpoint that is not there yet is named without hashes, and the bundle has no tokenizer. Raises BuildError.
    """
    if remedy := _remedy(plan):
        source = _source(plan)
        progress.note(f"{source} is not here: the bundle has no tokenizer; to serve it, {remedy} and build again")
        bare = plan.model_copy(update={"weights": Weights(kind="random")})
        return _prepared(bare, store, progress) / MODEL, WeightFiles(folder=source, files={})
    entry = _prepared(plan, store, progress)
    folder = _weights_folder(entry)
    return entry / MODEL, _weight_files(folder, store, progress) if folder else None


def absent(plan: Plan) -> str:
    """What to say where the checkpoint of `plan` is not here, with the remedy; "" if it is, or weights are random."""
    remedy = _remedy(plan)
    return remedy and f"{_source(plan)} is not here: {remedy}"


def _remedy(plan: Plan) -> str:
    """What brings the checkpoint of `plan` here, as a clause; "" where nothing has to."""
    if not _source(plan) or (plan.weights.path and Path(plan.weights.path).exists()):
        return ""
    name, _, revision = plan.weights.hub.partition("@")
    return f"run `hf download {name} --revision {revision}`" if name else "put the checkpoint there"


def _source(plan: Plan) -> str:
    return plan.weights.path or plan.weights.hub


def _prepared(plan: Plan, store: Store, progress: Progress) -> Path:
    progress.step("hash the checkpoint")
    key = _key(plan, store)
    entry = store.find(key)
    # Converted weights live beside the entry, where a user short of disk may have removed them.
    if entry is None or not _weights_exist(entry):
        store.drop(key)
        bare = not plan.weights.path and not plan.serving.chat_template
        entry = store.add(key, _make_bare if bare else lambda folder: _run(plan, folder, store, progress))
    return entry


def _key(plan: Plan, store: Store) -> str:
    program = files("dualpace") / MODEL
    sources = (entry.read_text("utf-8") for entry in sorted(program.iterdir(), key=str) if entry.name.endswith(".py"))
    inputs = (f"{name}:{store.file_digest(path)}" for name, path in _inputs(plan))
    return digest(["model", plan.model.model_dump_json(), plan.weights.model_dump_json(), *sources, *inputs])


def _inputs(plan: Plan) -> Iterator[tuple[str, Path]]:
    """Every file of the checkpoint, and the chat template of the spec."""
    checkpoint = Path(plan.weights.path)
    if plan.weights.path and checkpoint.is_dir():
        yield from ((path.name, path) for path in sorted(checkpoint.iterdir()) if path.is_file())
    elif plan.weights.path and checkpoint.is_file():
        yield checkpoint.name, checkpoint
    if plan.serving.chat_template:
        yield "chat_template", Path(plan.serving.chat_template)


def _make_bare(folder: Path) -> None:
    """What a model without files has: no tokenizer, and the defaults of generation."""
    generation = folder / GENERATION
    generation.parent.mkdir()
    generation.write_text(Generation().model_dump_json(indent=1) + "\n", encoding="utf-8")
    (folder / RESULT).write_text(json.dumps({"weights": None}), encoding="utf-8")


def _run(plan: Plan, folder: Path, store: Store, progress: Progress) -> None:
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise BuildError(f"preparing the model needs {', '.join(missing)}: run `pip install 'dualpace[serve]'`")
    progress.step("prepare the model")
    (folder / MODEL).mkdir()
    plan_file = folder / "plan.json"
    plan_file.write_text(plan.model_dump_json(), encoding="utf-8")
    command = [sys.executable, "-m", PREPARE, str(plan_file), str(folder / MODEL), str(store.root)]
    result: dict[str, object] = {}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                message = json.loads(line)
                if "progress" in message:
                    share = f", {message['done'] / message['total']:.0%}" if message["total"] > 1 else ""
                    progress.step(f"prepare the model: {message['progress']}{share}")
                else:
                    result = message
        if process.returncode or not result:
            complaints.seek(0)
            *before, last = complaints.read().strip().splitlines() or [f"exit status {process.returncode}"]
            raise BuildError(f"the model could not be prepared: {last}", "model", "\n".join(before))
    plan_file.unlink()
    (folder / RESULT).write_text(json.dumps(result), encoding="utf-8")


def _weights_folder(entry: Path) -> str:
    folder = json.loads((entry / RESULT).read_text(encoding="utf-8"))["weights"]
    return str(folder or "")


def _weights_exist(entry: Path) -> bool:
    folder = _weights_folder(entry)
    return not folder or Path(folder).is_dir()


def _weight_files(folder: str, store: Store, progress: Progress) -> WeightFiles:
    files = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        progress.step(f"hash {path.name}")
        files[path.name] = File(size=path.stat().st_size, sha256=store.file_digest(path))
    return WeightFiles(folder=folder, files=files)
