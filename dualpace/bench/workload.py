"""The requests that a load is made of."""

from collections.abc import Iterator
from pathlib import Path

from dualpace.bench.lengths import Request, check, drawn, is_distribution
from dualpace.bench.load import Load
from dualpace.bench.traces import counter, read


class Workload:
    """The load's requests in order. `left_out` counts those of a file that are too long for the server."""

    def __init__(self, load: Load) -> None:
        """Raises WorkloadError and OSError."""
        self._most = load.max_context
        self.left_out = 0
        check(load.workload)
        if is_distribution(load.workload):
            self._requests = drawn(load.workload, load.seed, load.max_context)
        else:
            self._requests = read(Path(load.workload), load.seed, counter(load.tokenizer))

    def __iter__(self) -> Iterator[Request]:
        for request in self._requests:
            if self._most is not None and request.prompt + request.output > self._most:
                self.left_out += 1
            else:
                yield request
