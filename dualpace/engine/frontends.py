"""What the engine's process does for frontends while it serves, beside the thread that steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dualpace.engine.claims import ending_dead_claims
from dualpace.engine.memory import RingMemory
from dualpace.plan.manifest import HOST_RING, Manifest

if TYPE_CHECKING:
    from dualpace.engine.gpu_rings import GpuRings


@contextmanager
def serving_frontends(
    bundle: Path, manifest: Manifest, memory: RingMemory, say: Callable[[str], None], gpu: "GpuRings | None" = None
) -> Iterator[None]:
    """Until the block ends, let frontends of other hosts in, if the plan says so, and end what dead ones left.

    With `gpu` the rings are there, and `memory` has their locks. Raises BundleError for a gate that cannot be opened.
    """
    with ending_dead_claims(bundle / HOST_RING, memory, gpu.turn_over if gpu else None) as claims:
        if manifest.plan.nic is None:
            yield
            return
        # Only now: verbs are installed where they are needed.
        from dualpace.engine.gate import Gate

        gate = Gate(bundle, manifest, manifest.plan.nic, gpu or memory, claims, say)
        try:
            yield
        finally:
            gate.close()
