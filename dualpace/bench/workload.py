"""The requests that a load is made of."""

from collections.abc import Iterator

from dualpace.bench.lengths import Request, WorkloadError, drawn, is_distribution, names
from dualpace.bench.load import Load


def requests_of(load: Load) -> Iterator[Request]:
    """The load's requests in order. Raises WorkloadError."""
    if is_distribution(load.workload):
        return drawn(load.workload, load.seed, load.max_context)
    raise WorkloadError(f"workload {load.workload!r} is no file and none of {names()}")
