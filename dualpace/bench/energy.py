"""What the GPUs of this machine use, from NVML's counters of energy."""

import contextlib
import ipaddress
from typing import Any
from urllib.parse import urlsplit


class Meter:
    """The energy between `begin` and `end`; `joules` stays None without NVML, or if another machine serves."""

    def __init__(self, url: str) -> None:
        self._nvml = _nvml() if _is_here(urlsplit(url).hostname or "") else None
        self._before: float | None = None
        self.joules: float | None = None

    def begin(self) -> None:
        """Start counting."""
        self._before = self._read()

    def end(self) -> None:
        """Stop counting; what comes after the first time does not count."""
        now = self._read()
        if self.joules is None and self._before is not None and now is not None:
            self.joules = now - self._before

    def _read(self) -> float | None:
        """Joules of all GPUs since the driver was loaded."""
        nvml = self._nvml
        if nvml is None:
            return None
        try:
            handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
            return float(sum(map(nvml.nvmlDeviceGetTotalEnergyConsumption, handles))) / 1e3 or None
        except nvml.NVMLError:
            return None


def gpus() -> dict[str, Any]:
    """The names of this machine's GPUs and their driver's version, if NVML tells."""
    nvml = _nvml()
    if nvml is None:
        return {}
    handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
    return {"gpus": [_text(nvml.nvmlDeviceGetName(handle)) for handle in handles],
            "driver": _text(nvml.nvmlSystemGetDriverVersion())}  # fmt: skip


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _nvml() -> Any:
    """NVML's bindings, if they and a driver are there."""
    with contextlib.suppress(ImportError):
        import pynvml

        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            return pynvml
    return None


def _is_here(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
