"""Serves a bundle on the GPU: provision, start, and then only watch until told to stop."""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from dualpace import gpu
from dualpace.engine.device import Cubin
from dualpace.engine.doorbell import Doorbell
from dualpace.engine.drive import DriveError, Driver, GpuEngine
from dualpace.engine.frontends import serving_frontends
from dualpace.engine.memory import RingMemory
from dualpace.engine.placing import placed
from dualpace.engine.provision import Say, StoppedError, check_bundle, vocabulary, weights
from dualpace.plan.manifest import HOST_RING, BundleError, HardwareError, Manifest, cubins
from dualpace.plan.plan import Plan
from dualpace.plan.structs import StepKind

# How long the death of the device may go unnoticed, and how long a stop may wait.
_WATCH_SECONDS = 0.25
_IDLE_SECONDS = 0.001


def serve(bundle: Path, manifest: Manifest, rings: Path, drive: Driver, stopped: Callable[[], bool], say: Say) -> None:
    """Serve `bundle`, whose `manifest` was read, over the rings at `rings` until `stopped()`; progress goes to `say`.

    Raises BundleError, RingMemoryError or ModelError for what cannot be served, DeviceError or DriveError for a GPU
    that fails.
    """
    begin = time.monotonic()
    check_bundle(bundle, manifest)
    plan = manifest.plan
    _check_device(bundle, plan)
    # Sums of split products stay in fp32.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    memory = RingMemory(rings, plan)
    try:
        cubin = Cubin(*cubins(bundle, manifest))
        with placed(memory, plan, say) as (address, gpu), serving_frontends(bundle, manifest, memory, say, gpu):
            table = weights(manifest, "cuda", say, stopped)
            say(f"capturing {len(plan.schedule.programs)} step programs")
            engine = GpuEngine(plan, table, cubin, address, vocabulary(bundle, manifest), drive)
            engine.start()
            say(f"ready on {torch.cuda.get_device_name()} after {time.monotonic() - begin:.1f} s")
            _watch(engine, drive, Doorbell(bundle / HOST_RING, memory), stopped)
            engine.stop()
            if not stopped():
                raise DriveError("the device has stopped launching steps")
    except StoppedError:
        pass
    finally:
        memory.close()


def _watch(engine: GpuEngine, drive: Driver, doorbell: Doorbell, stopped: Callable[[], bool]) -> None:
    """Return once `stopped()`, or once the device has stopped by itself; one that has parked is woken for requests."""
    while not stopped():
        if drive != "device":
            if engine.advance() is StepKind.IDLE:
                time.sleep(_IDLE_SECONDS)
        elif engine.running():
            time.sleep(_WATCH_SECONDS)
        elif not engine.parked():
            return
        elif doorbell.rings(_WATCH_SECONDS):
            engine.resume()


def _check_device(bundle: Path, plan: Plan) -> None:
    """Refuse what the bundle was not compiled for, before anything is loaded."""
    target = plan.target
    if target.kind != "cuda":
        raise BundleError(f"{bundle} is built for the CPU: build a spec that names `target.gpu`")
    needed = plan.memory.limit - plan.memory.free
    if complaint := gpu.refusal(str(bundle), target.name, target.sm, needed):
        raise HardwareError(complaint)
