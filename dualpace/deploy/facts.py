"""What both kinds of deployment say of a plan."""

import math

from dualpace.build.image import REPOSITORY, published_port, stop_seconds
from dualpace.frozen import Frozen
from dualpace.plan.plan import Plan
from dualpace.plan.recall import PINNING
from dualpace.preflight import host_memory

# Shared memory beside the rings: torch's, and room for the next engine's rings while the last one's are there.
_SPARE_SHARED_MEMORY = 16 << 20
# A cold start reads the weights twice, to hash and to load them: at the least so many bytes a second.
_LEAST_READ_BANDWIDTH = 100e6
_LEAST_START_SECONDS = 120


class Facts(Frozen):
    """`start_seconds` is when a container that does not answer yet is given up; sizes are in bytes."""

    name: str
    image: str
    port: int
    replicas: int
    gpus: int
    memory: int
    shared_memory: int
    stop_seconds: int
    start_seconds: int
    mounts_weights: bool
    mounts_keys: bool
    tls: bool


def facts(plan: Plan, image: str, replicas: int, *, baked: bool) -> Facts:
    """The facts of `replicas` containers of `image`, whose weights are `baked` in or mounted; "" names the default.

    Raises BuildError for a plan of which no container can be run.
    """
    start = 2 * plan.memory.weights / _LEAST_READ_BANDWIDTH + PINNING * plan.offload.host_budget
    return Facts(
        name=plan.name,
        image=image or f"{REPOSITORY}:{plan.name}",
        port=published_port(plan),
        replicas=replicas,
        gpus=plan.target.count if plan.target.kind == "cuda" else 0,
        memory=host_memory(plan),
        shared_memory=2 * plan.rings.bytes + _SPARE_SHARED_MEMORY,
        stop_seconds=math.ceil(stop_seconds(plan)),
        start_seconds=max(_LEAST_START_SECONDS, math.ceil(start)),
        mounts_weights=plan.weights.kind != "random" and not baked,
        mounts_keys=bool(plan.serving.api_key_file),
        tls=bool(plan.serving.tls_certificate),
    )


def mebibytes(size: int) -> int:
    """`size` in MiB, rounded up."""
    return -(-size // (1 << 20))
