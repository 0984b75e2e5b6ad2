"""`bench`: load on a server, as its users would put it there, and what they would have felt."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from dualpace import __version__
from dualpace.cli.bench_options import body_of, cpus_of, ids_of, limits_of, numbers_of, seconds_of
from dualpace.cli.inputs import StorePath, ThreadCount
from dualpace.cli.terminal import Exit, fail, show, write

if TYPE_CHECKING:
    from dualpace.bench.load import Load
    from dualpace.bench.result import Result, Run
    from dualpace.cli.bench_target import Target

DEFAULT_CLIENTS = 8
DEFAULT_DURATION_S = 30.0
WARM_UP_SHARE = 0.1


class _RunByDefault(TyperGroup):
    """`bench TARGET` is `bench run TARGET`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["run", *args]
        return super().parse_args(ctx, args)


class Api(StrEnum):
    """The API that is asked."""

    COMPLETIONS = "completions"
    CHAT = "chat"


class Kind(StrEnum):
    """What works beside the server."""

    COPY = "copy"
    COMPRESS = "compress"
    COMPILE = "compile"


bench = typer.Typer(cls=_RunByDefault, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@bench.callback()
def _group() -> None:
    """Measure a server under load: latencies, throughput, goodput, errors; `bench TARGET` is `bench run TARGET`."""


@bench.command()
def run(
    target: Annotated[str, typer.Argument(metavar="URL|SPEC|BUNDLE", help="A server, or what to serve first.")],
    rate: Annotated[str, typer.Option(metavar="R[,R...]", help="Open loop: requests a second, a run each.")] = "",
    concurrency: Annotated[str, typer.Option(metavar="N[,N...]", help="Closed loop: clients, a run each.")] = "",
    saturate: Annotated[bool, typer.Option(help="Go on from the last load until the server is saturated.")] = False,
    workload: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="chat[:IN,OUT], bimodal[:IN,OUT], zipf[:MOST,OUT], long[:IN,OUT], shared-prefix[:IN,OUT,PREFIX], "
            "fixed[:IN,OUT], in tokens; or a Mooncake or BurstGPT trace, or a ShareGPT file.",
        ),
    ] = "chat",
    duration: Annotated[
        str, typer.Option(metavar="TIME", help="Of a run, like 60s.", show_default="30s, or all of a trace")
    ] = "",
    requests: Annotated[int | None, typer.Option(min=1, help="End a run after so many.")] = None,
    warm_up: Annotated[
        str, typer.Option(metavar="TIME", help="At the start, not counted.", show_default="10% of the duration")
    ] = "",
    slo: Annotated[str, typer.Option(metavar="LIMITS", help="What is good, like ttft=500ms,tpot=50ms,e2e=10s.")] = "",
    burstiness: Annotated[
        float, typer.Option(min=0.01, help="Shape of the gamma distribution of intervals; 1 is Poisson, less burstier.")
    ] = 1.0,
    speed: Annotated[float, typer.Option(min=0.001, help="How many times as fast a trace is played.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of lengths and arrivals.")] = 0,
    repeat: Annotated[int, typer.Option(min=1, help="Runs under each load, with this seed, the next and so on.")] = 1,
    model: Annotated[str, typer.Option(help="The model's name.", show_default="the first that the server lists")] = "",
    api: Annotated[Api, typer.Option(help="Completions are asked with token ids, chats with words.")] = Api.COMPLETIONS,
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="Sent to the server.", show_default=False)] = "",
    body: Annotated[
        str, typer.Option(metavar="JSON", help="Joined to each request; null leaves a field out, such as ignore_eos.")
    ] = "{}",
    ids: Annotated[str, typer.Option(metavar="LOW:HIGH", help="Token ids of prompts.", show_default="1000:31000")] = "",
    tokenizer: Annotated[
        Path | None, typer.Option(exists=True, help="tokenizer.json that counts the tokens of a ShareGPT file.")
    ] = None,
    max_context: Annotated[
        int | None, typer.Option(min=1, help="Longest request.", show_default="the server's")
    ] = None,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="Silence after which an answer is given up.")] = "10min",
    interfere: Annotated[int, typer.Option(min=0, metavar="N", help="Keep N threads busy beside the server.")] = 0,
    interference: Annotated[Kind, typer.Option(help="What they do; copy also computes.")] = Kind.COPY,
    cpus: Annotated[str, typer.Option(metavar="SET", help="Where they run, like 0-13.", show_default="anywhere")] = "",
    client_cpus: Annotated[
        str, typer.Option(metavar="SET", help="Where the load generator runs.", show_default="anywhere")
    ] = "",
    output: Annotated[
        list[Path] | None,
        typer.Option("-o", "--output", metavar="FILE", help="A .json, .html or .csv file of the result; repeatable."),
    ] = None,
    each: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A CSV file that gets a line a request, added to what it has.")
    ] = None,
    label: Annotated[str, typer.Option(help="The result's name in reports.", show_default="the target")] = "",
    threads: ThreadCount = 0,
    store: StorePath = None,
) -> None:
    """Put load on a server, or on a spec or bundle that is served meanwhile, and report what its users would feel."""
    from dualpace.bench.lengths import WorkloadError, check
    from dualpace.bench.load import Interference
    from dualpace.bench.machine import machine
    from dualpace.bench.report import run_report
    from dualpace.bench.result import Result
    from dualpace.cli.bench_target import target_of

    rates, clients = numbers_of("--rate", rate, float), numbers_of("--concurrency", concurrency, int)
    if rates and clients:
        fail("--rate and --concurrency exclude each other: the loop is open or closed")
    outputs = [_checked(path) for path in output or ()]
    if each:
        each.open("ab").close()
    try:
        check(workload)
    except WorkloadError as error:
        fail(str(error))
    traced = Path(workload).is_file() and not rates and not clients
    length = seconds_of("--duration", duration) if duration else None if requests or traced else DEFAULT_DURATION_S
    options: dict[str, Any] = {
        "api": api.value,
        "workload": workload,
        "burstiness": burstiness,
        "speed": speed,
        "requests": requests,
        "duration": length,
        "warm_up": seconds_of("--warm-up", warm_up) if warm_up else WARM_UP_SHARE * (length or 0),
        "timeout": seconds_of("--timeout", timeout),
        "tokenizer": None if tokenizer is None else str(tokenizer),
        "limits": limits_of(slo),
        "body": body_of(body),
        "cpus": cpus_of("--client-cpus", client_cpus),
        "interference": Interference(workers=interfere, kind=interference.value, cpus=cpus_of("--cpus", cpus)),
    }
    with target_of(target, api_key, threads, store) as found:
        options |= {
            "url": found.url,
            "certificate": found.certificate,
            "model": model or found.model,
            "ids": ids_of(ids) if ids else found.ids,
            "max_context": max_context or found.max_context,
        }
        ways = [{"rate": each} for each in rates] or [{"concurrency": each} for each in clients]
        ways = ways or [{} if traced else {"concurrency": DEFAULT_CLIENTS}]
        result = Result(label=label or target, version=__version__, machine=machine(), server=found.about, runs=())
        try:
            for done in _runs(found, options, ways, range(seed, seed + repeat), saturate, each):
                result = result.model_copy(update={"runs": (*result.runs, done)})
                show(run_report(done))
        finally:  # what was measured before a later run failed or was interrupted is kept
            for path in outputs if result.runs else ():
                _save(result, path)
    if not any(run.succeeded for run in result.runs):
        raise typer.Exit(Exit.FINDINGS)


@bench.command()
def compare(
    a: Annotated[Path, typer.Argument(exists=True, metavar="A", help="A result, .json.")],
    b: Annotated[Path, typer.Argument(exists=True, metavar="B", help="One under the same loads, with the same seeds.")],
) -> None:
    """Say by how much B differs from A, figure by figure, and how sure that is."""
    from dualpace.bench.compare import compare as ratios_of
    from dualpace.bench.report import comparison_report

    first, second = _read(a), _read(b)
    ratios = ratios_of(first, second)
    if not ratios:
        fail(f"{a} and {b} have no run with the same load and seed", Exit.FINDINGS)
    labels = (first.label, second.label) if first.label != second.label else (str(a), str(b))
    write(comparison_report(ratios, labels))


@bench.command()
def report(
    result: Annotated[Path, typer.Argument(exists=True, metavar="RESULT", help="A result, .json.")],
    output: Annotated[
        list[Path], typer.Option("-o", "--output", metavar="FILE", help="A .html or .csv file of it; repeatable.")
    ],
) -> None:
    """Write a result that is kept as another kind of file."""
    found = _read(result)
    for path in map(_checked, output):
        _save(found, path)


def _runs(
    target: Target, options: dict[str, Any], ways: list[dict[str, Any]], seeds: range, saturate: bool, each: Path | None
) -> Iterator[Run]:
    """One run after another."""
    from pydantic import ValidationError

    from dualpace.bench.load import Load
    from dualpace.bench.sweep import saturating

    put = partial(_put, target.key, each)
    for seed in seeds:
        try:
            loads = [Load.model_validate(options | way | {"seed": seed}) for way in ways]
        except ValidationError as error:
            fail("; ".join(f"{'.'.join(map(str, found['loc']))}: {found['msg']}" for found in error.errors()))
        for load in loads[:-1] if saturate else loads:
            yield put(load)
        if saturate:
            yield from saturating(loads[-1], put)


def _put(key: str, each: Path | None, load: Load) -> Run:
    from dualpace.bench.offer import OfferError, offer
    from dualpace.cli.bench_live import live

    try:
        with live(load, sys.stderr) as say:
            return offer(load, key, say, each)
    except OfferError as error:
        fail(str(error), Exit.INTERNAL if error.ours else Exit.USAGE)


def _checked(path: Path) -> Path:
    if path.suffix not in (".json", ".html", ".csv"):
        fail(f"{path} is of no kind that a result is written as: name it .json, .html or .csv")
    path.open("ab").close()  # it can be written: better known before the run than after
    return path


def _save(result: Result, path: Path) -> None:
    from dualpace.bench.html import page
    from dualpace.bench.sheet import sheet

    match path.suffix:
        case ".json":
            text = result.model_dump_json(indent=1) + "\n"
        case ".csv":
            text = sheet(result)
        case _:
            text = page(result)
    path.write_text(text, encoding="utf-8")
    show(f"{path} is written\n", sys.stderr)


def _read(path: Path) -> Result:
    from pydantic import ValidationError

    from dualpace.bench.result import Result

    try:
        return Result.model_validate_json(path.read_bytes())
    except ValidationError as error:
        fail(f"{path} is no result of `dualpace bench -o FILE.json`: {error.errors()[0]['msg']}")
