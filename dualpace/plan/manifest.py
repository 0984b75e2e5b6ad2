"""The bundle's manifest: what the serving side knows of a deployment. `build` writes it, last; engines only read it."""

from pathlib import Path

from dualpace.frozen import Frozen
from dualpace.plan.plan import Plan

FORMAT = 1
MANIFEST = "manifest.json"
HOST_ENGINE = "host/libengine.so"
HOST_RING = "host/libring.so"
CUDA_ENGINE = "cuda/engine.cubin"
TOKENIZER = "model/tokenizer.json"
CHAT_TEMPLATE = "model/chat_template.jinja"
GENERATION = "model/generation.json"


class WeightFiles(Frozen):
    """Safetensors named by path, with their SHA-256 if they were there at build."""

    folder: str
    files: dict[str, str]


class Manifest(Frozen):
    """`files`: path in the bundle -> SHA-256. `digest` covers files and plan, without paths outside the bundle."""

    format: int
    version: str
    digest: str
    layout: str
    plan: Plan
    files: dict[str, str]
    weights: WeightFiles | None
    toolchain: dict[str, str]


class Generation(Frozen):
    """Generation defaults and special tokens of the model, from its generation config joined with its tokenizer.

    Of `eos_tokens`, any of which ends a text, the tokenizer's own comes first.
    """

    bos_token: int | None = None
    add_bos: bool = False
    eos_tokens: tuple[int, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


class BundleError(Exception):
    """A bundle that cannot be served; the message names the file and the remedy."""


def read_manifest(bundle: Path) -> Manifest:
    """Read and check `bundle`'s manifest. Raises BundleError."""
    path = bundle / MANIFEST
    if not path.is_file():
        raise BundleError(f"{bundle} is not a bundle: it has no {MANIFEST}; run `dualpace build`")
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except ValueError as error:
        raise BundleError(f"{path} was not written by this version of dualpace; build the spec again") from error
    if manifest.format != FORMAT:
        raise BundleError(f"{path} has format {manifest.format}, this version reads {FORMAT}; build the spec again")
    return manifest
