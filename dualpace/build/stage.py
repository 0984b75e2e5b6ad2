"""What the stages of the Dockerfile do, as a program of its own: it runs where nothing of this package is installed.

- `stage.py python TREE`: this interpreter and its standard library, with the shared libraries that they need
- `stage.py trim TREE`: leave out of installed packages what only their developers need
- `stage.py loads FILE...`: fail unless each shared library finds all that it needs here
- `stage.py normalise TREE`: compile to bytecode; give all files times and modes that say nothing of this machine
"""

import compileall
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from py_compile import PycInvalidationMode

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
# Part of every base that has a package manager, and no older there than here.
BASE_LIBRARIES = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|gcc_s|stdc\+\+))\.so.*")
LEFT_OUT = ("__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo",
            "ensurepip", "lib2to3", "pydoc_data", "config-*", "*.a")  # fmt: skip
# Of torch: headers, tools and tests. The manager of shared memory has to be there for torch to be imported. Of CUDA:
# what one compiles against, and compilers, which torch looks for when it is asked to compile and not before.
TRIMMED = ("bin", "pip", "pip-*", "torch/include", "torch/share", "torch/test", "torch/bin/[!t]*", "torch/bin/test*",
           "torch/lib/libjitbackend_test.so", "torch/lib/libtorchbind_test.so", "torch/lib/libbackend_with_compiler.so",
           "torch/lib/libaoti_custom_ops.so", "triton", "triton-*", "nvidia/*/include", "nvidia/*/lib/*.a",
           "nvidia/*/lib/*.bc", "nvidia/*/lib/libnvrtc*.alt.*")  # fmt: skip
# What torch imports only to trace, compile or test models. It is there, but its bytecode would be half of the image's.
NEVER_IMPORTED = re.compile(r"/site/(sympy|networkx|mpmath|setuptools|torch/(_inductor|_dynamo|testing/_internal))/")


def copy_python(tree: Path) -> None:
    """Put this interpreter at `tree`, where it finds its library beside itself."""
    library = tree / "lib" / VERSION
    standard = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(standard, library, ignore=shutil.ignore_patterns(*LEFT_OUT), ignore_dangling_symlinks=True)
    (tree / "bin").mkdir()
    program = Path(shutil.copy(Path(sys.executable).resolve(), tree / "bin" / VERSION))
    (tree / "bin" / "python3").symlink_to(VERSION)
    for needed in sorted({path for file in (program, *library.glob("lib-dynload/*.so")) for path in _needed(file)}):
        if not BASE_LIBRARIES.fullmatch(needed.name):
            shutil.copy(needed, tree / "lib" / needed.name)


def trim(tree: Path) -> None:
    """Remove from the installed packages at `tree` what nothing needs at run time."""
    unneeded = [path for pattern in TRIMMED for path in tree.glob(pattern)]
    unneeded += [path for path in tree.rglob("tests") if path.is_dir()]
    for path in unneeded:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # a folder that it was in may be gone already


def _needed(file: Path) -> list[Path]:
    """The shared libraries that `file` needs, as found here."""
    listing = subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout
    return [Path(path) for path in re.findall(r"=> (/\S+)", listing)]


def check_loads(files: list[str]) -> None:
    """Exit with a line for each of `files` that this base's libraries do not suit."""
    for file in files:
        listing = subprocess.run(["ldd", file], capture_output=True, text=True, check=False)
        for line in (listing.stdout + listing.stderr).splitlines():
            # OpenMP's runtime comes with torch.
            if "version `" in line or ("not found" in line and "libgomp" not in line):
                sys.exit(f"{line.strip()}: the bundle was compiled on a newer system than the image's base")


def normalise(tree: Path) -> None:
    """Compile the Python of `tree`, which becomes part of the image's root, and set every time and mode."""
    # Checked against no source: a layer's times say nothing, and nobody edits what is in an image.
    unchecked = PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(tree, maxlevels=99, quiet=2, workers=0, stripdir=str(tree), prependdir="/",
                           invalidation_mode=unchecked, rx=NEVER_IMPORTED)  # fmt: skip
    for folder, _, names in os.walk(tree, topdown=False):
        for path in (*(Path(folder, name) for name in names), Path(folder)):
            if not path.is_symlink():
                executable = path.is_dir() or path.stat().st_mode & 0o100
                path.chmod(0o755 if executable else 0o644)
            os.utime(path, (0, 0), follow_symlinks=False)


if __name__ == "__main__":
    action, *arguments = sys.argv[1:]
    if action == "loads":
        check_loads(arguments)
    else:
        {"python": copy_python, "trim": trim, "normalise": normalise}[action](Path(arguments[0]))
