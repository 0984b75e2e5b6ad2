"""When requests arrive in an open loop."""

from collections.abc import Iterator
from random import Random


def gamma(rate: float, burstiness: float, seed: int) -> Iterator[float]:
    """Times without end in seconds, `rate` a second on average, their intervals gamma-distributed.

    `burstiness` is the distribution's shape: 1 is a Poisson process, less is burstier, much more is regular.
    """
    dice = Random(f"{seed} arrivals")
    at = 0.0
    while True:
        at += dice.gammavariate(burstiness, 1 / (rate * burstiness))
        yield at
