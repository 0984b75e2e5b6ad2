"""A load generator that fails when the first answer has come."""

from dualpace.bench import worker
from dualpace.bench.record import Record


def fail(*_: object) -> None:
    raise RuntimeError("planted")


if __name__ == "__main__":
    Record.add = fail
    worker.main()
