"""What a reader of a run's figures must know before believing them."""

from dualpace.bench.result import Run
from dualpace.bench.statistics import needed

OTHER_LENGTHS = 0.01
MERGED = 1.01
_MS = 1e3


def warnings(run: Run) -> tuple[str, ...]:
    """One sentence each, the gravest first."""
    found = []
    lag = run.lag
    if lag.bottleneck:
        found.append(
            f"The load generator is part of the figures: it used {lag.cpu:.0%} of its core, saw answers up to "
            f"{_MS * lag.seeing_p99:.1f} ms late and sent up to {_MS * lag.sending_p99:.1f} ms late (p99). "
            "Give it a core of its own, or offer less."
        )
    if failed := run.requests - run.succeeded:
        found.append(f"{failed} of {run.requests} requests failed; latencies are of those that did not.")
    if not run.requests and run.load.warm_up:
        return (
            *found,
            f"No request began after the warm-up of {run.load.warm_up:g} s: "
            "measure for longer than an answer takes, with --duration.",
        )
    if not run.succeeded:
        return (*found, "No request succeeded: there are no latencies.")
    ttft = run.latencies["ttft"]
    if few := [name for name, figure in ttft.quantiles.items() if figure.high is None]:
        least = needed(float(few[0][1:]) / 100)
        found.append(
            f"Too few requests for confidence in {' and '.join(few)}: {few[0]} needs {least} independent ones, and "
            f"these {ttft.count} may say less, since those that queue together are late together."
        )
    if run.left_out:
        found.append(
            f"{run.left_out} requests of {run.load.workload} were left out: they are longer than the server takes."
        )
    if run.other_lengths > OTHER_LENGTHS * run.succeeded:
        found.append(
            f"{run.other_lengths} answers have another number of tokens than they were asked for: "
            "the server does not know ignore_eos, or its context ended."
        )
    if run.output_tokens > MERGED * run.pieces:
        found.append(
            f"The server sends {run.output_tokens / run.pieces:.2f} tokens at a time: "
            "ITL is the time between what it sends; TPOT counts tokens."
        )
    return tuple(found)
