"""The host kernels of a bundle's library, from Python.

torch is imported before the library is opened, so that both share torch's OpenMP runtime and its threads.
"""

import ctypes
from pathlib import Path

import torch  # noqa: F401

from dualpace.plan.manifest import BundleError

_POINTER = ctypes.c_void_p
_INT = ctypes.c_int
_SIGNATURES: dict[str, tuple[type, ...]] = {
    "dp_embed": (_POINTER, _POINTER, _POINTER),
    "dp_norm": (_POINTER, _POINTER, _POINTER, _INT),
    "dp_add_norm": (_POINTER, _POINTER, _POINTER, _POINTER, _INT),
    "dp_linear": (_POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _INT, _INT, _INT),
    "dp_rope_angles": (_POINTER, _POINTER, ctypes.c_float, _POINTER),
    "dp_rope_append": (_POINTER, _INT, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER),
    "dp_attention": (_POINTER, _INT, _POINTER, _POINTER, _POINTER, _POINTER),
    "dp_gate": (_POINTER, _POINTER, _INT),
    "dp_gather": (_POINTER, _POINTER, _POINTER),
}


class Kernels(ctypes.CDLL):
    """The library at `path`. Operands are addresses; activations are fp32, weights and KV of the plan's dtype."""

    def __init__(self, path: Path) -> None:
        """Raises BundleError for a library that this machine cannot load."""
        try:
            super().__init__(str(path))
        except OSError as error:
            raise BundleError(f"{path} cannot be loaded here ({error}): build the spec again") from error
        for name, arguments in _SIGNATURES.items():
            function = getattr(self, name)
            function.argtypes = arguments
            function.restype = None
        self.dp_isa.restype = ctypes.c_char_p
        self.dp_workspace_bytes.restype = ctypes.c_int64
        self.dp_use_isa.argtypes = (ctypes.c_char_p,)

    @property
    def isa(self) -> str:
        """The instruction set in use: v3, v4, v4_bf16 or v4_amx."""
        name: bytes = self.dp_isa()
        return name.decode()

    def use_isa(self, name: str) -> bool:
        """For tests and measurements: use the kernels of `name`; False if this machine lacks it."""
        return bool(self.dp_use_isa(name.encode()))

    @property
    def workspace_bytes(self) -> int:
        """Bytes of a lane's workspace, most of which is touched by long contexts only."""
        return int(self.dp_workspace_bytes())

    @property
    def streamed_rows(self) -> int:
        """Most rows that `dp_linear` takes."""
        return int(self.dp_streamed_rows())
