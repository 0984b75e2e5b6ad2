"""The bundle's manifest: what the serving side knows of a deployment. `build` writes it, last; engines only read it."""

from collections.abc import Mapping
from pathlib import Path

from dualpace.files import file_digest
from dualpace.frozen import Frozen
from dualpace.plan.plan import Plan

FORMAT = 2
MANIFEST = "manifest.json"
HOST_ENGINE = "host/libengine.so"
HOST_RING = "host/libring.so"
# What a device has CPU workers run.
HOST_WORKERS = "host/libworkers.so"
# The ring library for frontends on a SmartNIC's cores, where the bundle was built on another machine.
AARCH64_RING = "aarch64/libring.so"
CUDA_ENGINE = "cuda/engine.cubin"
CUDA_PREFILL = "cuda/prefill.cubin"
CUDA_CUBINS = (CUDA_ENGINE, CUDA_PREFILL)
TOKENIZER = "model/tokenizer.json"
CHAT_TEMPLATE = "model/chat_template.jinja"
GENERATION = "model/generation.json"
# What runs: these are compared byte for byte before they are loaded, other files by their size.
LIBRARIES = (HOST_ENGINE, HOST_RING, HOST_WORKERS, AARCH64_RING, *CUDA_CUBINS)


class File(Frozen):
    """A file as it was at build: bytes, and their SHA-256 in hex."""

    size: int
    sha256: str


class WeightFiles(Frozen):
    """Safetensors by name, in a folder outside the bundle; no files if the checkpoint was not there at build."""

    folder: str
    files: dict[str, File]


class Manifest(Frozen):
    """`files`: by path in the bundle. `digest` covers them, the plan and the weights, wherever the weights lie."""

    format: int
    version: str
    digest: str
    layout: str
    plan: Plan
    files: dict[str, File]
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


class WeightsError(BundleError):
    """A checkpoint that is not the one that the bundle was built with."""


class HardwareError(BundleError):
    """A machine that a bundle was not built for."""


def read_manifest(bundle: Path) -> Manifest:
    """The manifest of `bundle`, whose files are there, of their size, and the libraries of their bytes.

    Raises BundleError.
    """
    path = bundle / MANIFEST
    if not path.is_file():
        raise BundleError(f"{bundle} is not a bundle: it has no {MANIFEST}; run `dualpace build`")
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except ValueError as error:
        raise BundleError(f"{path} was not written by this version of dualpace; build the spec again") from error
    if manifest.format != FORMAT:
        raise BundleError(f"{path} has format {manifest.format}, this version reads {FORMAT}; build the spec again")
    _check_sizes(bundle, manifest.files, "build the spec again", BundleError)
    for name in LIBRARIES:
        if name in manifest.files and file_digest(bundle / name) != manifest.files[name].sha256:
            raise BundleError(f"{bundle / name} is not the one that was built: build the spec again")
    return manifest


def cubins(bundle: Path, manifest: Manifest) -> tuple[Path, ...]:
    """What the engine loads on a GPU."""
    return tuple(bundle / name for name in CUDA_CUBINS if name in manifest.files)


def ring_library(manifest: Manifest, here: str, there: str) -> str | None:
    """The ring library for a machine of the kind `there`, in a bundle that is served on one of the kind `here`."""
    if there == here:
        return HOST_RING
    return AARCH64_RING if there == "aarch64" and AARCH64_RING in manifest.files else None


def frontend_files(bundle: Path, manifest: Manifest, library: str) -> dict[str, bytes]:
    """What a frontend alone needs, by path: it is a bundle again, of the same digest, with `library` as its own."""
    names = {name: name for name in manifest.files if name.startswith("model/")} | {HOST_RING: library}
    files = {name: manifest.files[source] for name, source in names.items()}
    part = manifest.model_copy(update={"files": files, "weights": None})
    contents = {name: (bundle / source).read_bytes() for name, source in names.items()}
    return contents | {MANIFEST: part.model_dump_json().encode()}


def check_weights(weights: WeightFiles) -> None:
    """Compare a checkpoint with what it was at build, by names and sizes: hashing it would read it once more.

    Raises WeightsError.
    """
    if not weights.files:
        raise WeightsError(
            f"{weights.folder} was not there when the bundle was built, which has no tokenizer therefore: "
            "put the checkpoint there and build the spec again"
        )
    remedy = "mount the checkpoint that the bundle was built with, or build the spec again"
    _check_sizes(Path(weights.folder), weights.files, remedy, WeightsError)
    for path in sorted(Path(weights.folder).glob("*.safetensors")):
        if path.name not in weights.files:
            raise WeightsError(f"{path} was not there when the bundle was built: {remedy}")


def _check_sizes(folder: Path, files: Mapping[str, File], remedy: str, error: type[BundleError]) -> None:
    for name, file in files.items():
        path = folder / name
        if not path.is_file():
            raise error(f"{path} is missing: {remedy}")
        if path.stat().st_size != file.size:
            raise error(f"{path} has {path.stat().st_size} bytes, {file.size} when it was built: {remedy}")
