"""The image's Python packages: wheels by name and hash, fetched once."""

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

from dualpace.build.errors import BuildError
from dualpace.build.progress import Progress
from dualpace.build.store import Store, digest

PYTHON = "3.11"
REQUIREMENTS = "requirements.txt"
# glibc 2.28's and of all that are older, by both names that some have; pip takes no tag to include older ones.
_PLATFORMS = (*(f"manylinux_2_{minor}" for minor in range(28, 4, -1)), "manylinux2014", "manylinux2010", "manylinux1")


def fetch_wheels(kind: str, store: Store, progress: Progress) -> Path:
    """The folder of the wheels that an image for a target of `kind` holds, with their requirements file.

    Uses pip as it is set up on this machine, so an index of one's own serves as well: hashes decide. Raises BuildError.
    """
    lock = (files("dualpace.build") / "locks" / f"{kind}.txt").read_text(encoding="utf-8")
    key = digest(["wheels", PYTHON, *_PLATFORMS, lock])

    def fetch(folder: Path) -> None:
        progress.step("fetch the image's packages")
        requirements = folder / REQUIREMENTS
        requirements.write_text(lock, encoding="utf-8")
        platforms = [argument for name in _PLATFORMS for argument in ("--platform", f"{name}_x86_64")]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--require-hashes", "--only-binary", ":all:", "--python-version", PYTHON, *platforms]
        command += ["--dest", str(folder), "--requirement", str(requirements)]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if result.returncode:
            remedy = ": point pip at an index that has torch for the CPU" if kind == "cpu" else ""
            said = result.stdout + result.stderr
            raise BuildError(f"pip cannot fetch the image's packages, its text is above{remedy}", output=said)

    return store.find(key) or store.add(key, fetch)
