"""What a run is told to do."""

from typing import Literal

from pydantic import Field, JsonValue, model_validator

from dualpace.frozen import Frozen


class Limits(Frozen):
    """The service level: what a request must stay within to be good, in seconds."""

    ttft: float | None = Field(None, gt=0)
    tpot: float | None = Field(None, gt=0)
    e2e: float | None = Field(None, gt=0)


class Interference(Frozen):
    """So many workers beside the run, on these CPUs (none: on all): see `bench.interfere`."""

    workers: int = Field(0, ge=0)
    kind: Literal["copy", "compress", "compile"] = "copy"
    cpus: tuple[int, ...] = ()


class Load(Frozen):
    """A load on a server.

    Open loop: `rate` requests a second arrive whatever becomes of earlier ones, `burstiness` being the shape of the
    gamma distribution of their intervals (1: Poisson; less: burstier). Closed loop: `concurrency` clients ask again as
    soon as they are answered. Neither: requests arrive as the trace `workload` says, its time `speed` times as fast.
    The run ends after `requests` or `duration` seconds. `body` is joined to each request; null leaves a field out. With
    `certificate` the server is the one that has that of the PEM file, whatever its name.
    """

    url: str
    certificate: str | None = None
    model: str
    api: Literal["completions", "chat"] = "completions"
    workload: str = "chat"
    rate: float | None = Field(None, gt=0)
    burstiness: float = Field(1.0, gt=0)
    concurrency: int | None = Field(None, gt=0)
    speed: float = Field(1.0, gt=0)
    requests: int | None = Field(None, gt=0)
    duration: float | None = Field(None, gt=0)
    warm_up: float = Field(0.0, ge=0)
    timeout: float = Field(600.0, gt=0)
    seed: int = 0
    ids: tuple[int, int] = (1000, 31000)
    tokenizer: str | None = None
    max_context: int | None = Field(None, gt=0)
    limits: Limits = Limits()
    interference: Interference = Interference()
    body: dict[str, JsonValue] = Field({})
    cpus: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _one_way_to_arrive(self) -> "Load":
        if self.rate and self.concurrency:
            raise ValueError("rate and concurrency exclude each other: the loop is open or closed")
        return self
