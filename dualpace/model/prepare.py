"""The build's subprocess: what a bundle needs of a model's files, and GGUF weights converted into the store.

    python -m dualpace.model.prepare PLAN.json OUT_DIR STORE_DIR

OUT_DIR is the bundle's model/ folder. One JSON line on stdout for each step of progress, and at the end the folder of
safetensors, null for random weights. Exit code 2 with one line on stderr if the model cannot be prepared.
"""

import json
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.metadata import version
from pathlib import Path

import tokenizers

from dualpace.files import file_digest, new_folder
from dualpace.model.chat import ChatTemplate
from dualpace.model.error import ModelError
from dualpace.model.generation import chat_template, check, from_folder, from_gguf
from dualpace.model.tokenizer import token_decoder
from dualpace.plan.gguf_header import GgufError, read_header
from dualpace.plan.manifest import CHAT_TEMPLATE, GENERATION, TOKENIZER, Generation
from dualpace.plan.plan import Plan

# Part of a converted tokenizer's folder name: raised whenever the same file would give other bytes.
CONVERTER = 1

# Called with what is being done, how much of it is done and how much there is, in any unit.
Report = Callable[[str, int, int], None]


class PrepareError(ModelError):
    """A model that cannot be prepared; the message names the file and the remedy."""


def prepare(plan: Plan, out: Path, store: Path, report: Report) -> Path | None:
    """Fill `out` for `plan`'s model. Returns the folder of its safetensors, None for random weights.

    Raises ModelError.
    """
    source = Path(plan.weights.path) if plan.weights.path else None
    weights = None
    if source is None:
        _write(out, None, Generation(), None)
    elif source.suffix == ".gguf":
        report("hashing", 0, 1)
        digest = file_digest(source)
        shutil.copytree(_gguf_model(source, digest, store, report), out, dirs_exist_ok=True)
        if plan.weights.kind == "gguf":
            # Only a conversion needs torch and numpy.
            from dualpace.model.gguf import convert

            weights = convert(source, digest, plan.model, store, lambda done, of: report("weights", done, of))
    else:
        report("tokenizer", 0, 1)
        _write_folder(source, out)
        weights = source if plan.weights.kind == "safetensors" else None
    if source is not None:
        settings = out / Path(GENERATION).name
        check(Generation.model_validate_json(settings.read_bytes()), plan.model.vocab, source)
    if plan.serving.chat_template:
        _write_template(out, _read_template(Path(plan.serving.chat_template)))
    return weights


def _gguf_model(source: Path, digest: str, store: Path, report: Report) -> Path:
    """The store's folder with the tokenizer, generation config and chat template of a GGUF."""
    folder = store / "tokenizers" / f"{digest}-v{CONVERTER}-transformers-{version('transformers')}"
    if not folder.is_dir():
        report("tokenizer", 0, 1)
        try:
            metadata = read_header(source).metadata
        except GgufError as error:
            raise PrepareError(f"{source}: {error}: download it again") from error
        text = _converted(source.parent, source, gguf_file=source.name)
        template = metadata.get("tokenizer.chat_template")
        with new_folder(folder) as partial:
            generation = from_gguf(metadata, tokenizers.Tokenizer.from_str(text))
            _write(partial, text, generation, None if template is None else str(template))
    return folder


def _write_folder(source: Path, out: Path) -> None:
    file = source / Path(TOKENIZER).name
    if file.is_file():
        text = file.read_text(encoding="utf-8")
    elif any(source.glob("tokenizer*")) or (source / "vocab.json").is_file():
        text = _converted(source, source)
    else:
        raise PrepareError(f"{source} has no tokenizer: put the model's tokenizer.json there")
    try:
        tokenizer = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the binding raises Exception itself
        raise PrepareError(f"{file} is not a tokenizer ({error}): download it again") from error
    _write(out, text, from_folder(source, tokenizer), chat_template(source))


def _converted(folder: Path, source: Path, **arguments: str) -> str:
    """tokenizer.json made by transformers; the same bytes for the same file."""
    from transformers import AutoTokenizer, logging

    logging.set_verbosity_error()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, **arguments)
        text = tokenizer.backend_tokenizer.to_str()
    # Each tokenizer class of transformers fails in its own way.
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise PrepareError(f"{source}: its tokenizer cannot be converted ({reason}): add a tokenizer.json") from error
    return json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False)


def _read_template(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PrepareError(f"serving.chat_template: {file} cannot be read ({error})") from error


def _write(out: Path, tokenizer: str | None, generation: Generation, template: str | None) -> None:
    out.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        file = out / Path(TOKENIZER).name
        token_decoder(json.loads(tokenizer)["decoder"], file)
        file.write_text(tokenizer, encoding="utf-8")
    settings = json.dumps(generation.model_dump(), sort_keys=True, indent=1)
    (out / Path(GENERATION).name).write_text(settings + "\n", encoding="utf-8")
    if template is not None:
        _write_template(out, template)


def _write_template(out: Path, template: str) -> None:
    # A syntax error is found at build, not by the first request.
    ChatTemplate(template, {})
    (out / Path(CHAT_TEMPLATE).name).write_text(template, encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Entry point; returns the exit code."""
    if len(arguments) != 3:
        sys.stderr.write("usage: python -m dualpace.model.prepare PLAN.json OUT_DIR STORE_DIR\n")
        return 2
    lines = sys.stdout

    def line(content: dict[str, object]) -> None:
        lines.write(json.dumps(content) + "\n")
        lines.flush()

    def report(text: str, done: int, total: int) -> None:
        line({"progress": text, "done": done, "total": total})

    plan_file, out, store = map(Path, arguments)
    with redirect_stdout(sys.stderr):
        try:
            plan = Plan.model_validate_json(plan_file.read_bytes())
            weights = prepare(plan, out, store, report)
        except (ModelError, OSError) as error:
            sys.stderr.write(f"{error}\n")
            return 2
    line({"weights": None if weights is None else str(weights)})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
