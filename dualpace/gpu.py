"""Whether this machine has a GPU, asked of the driver alone."""

import ctypes


def there_is_one() -> bool:
    """Whether the NVIDIA driver shows a GPU to this process."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int()
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0


def lacking(name: str, target: str) -> str:
    """What to say where `name`, built for the GPU `target`, finds none."""
    return (
        f"{name} is built for {target} and this machine shows no NVIDIA GPU: "
        "serve it on one that has it, or build a spec with `cpu: true` in its target"
    )
