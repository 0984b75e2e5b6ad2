"""Files of requests: their formats are told by their content, and lines that make no sense are named."""

import json
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from dualpace.bench.lengths import Request, WorkloadError
from dualpace.bench.load import Load
from dualpace.bench.offer import OfferError
from dualpace.bench.prompts import Bodies
from dualpace.bench.traces import counter, read
from dualpace.bench.workload import Workload

MOONCAKE = [
    {"timestamp": 27000, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 48]},
    {"timestamp": 30000, "input_length": 1030, "output_length": 26, "hash_ids": [46, 47, 2353]},
    {"timestamp": 30500, "input_length": 900, "output_length": 3, "hash_ids": [46, 9]},
]
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
BURST_3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "requests"
    path.write_text(text, encoding="utf-8")
    return path


def row(**fields: object) -> str:
    return json.dumps(MOONCAKE[0] | fields)


def mooncake(folder: Path) -> Path:
    return written(folder, "".join(f"{json.dumps(row)}\n" for row in MOONCAKE))


def all_of(path: Path) -> list[Request]:
    return list(read(path, 0, len))


def test_mooncake_has_arrivals_lengths_and_shared_blocks(tmp_path):
    first, second, third = all_of(mooncake(tmp_path))
    assert [each.at for each in (first, second, third)] == [0.0, 3.0, 3.5]
    assert (first.prompt, first.output, first.blocks) == (1100, 52, ((46, 512), (47, 512), (48, 76)))
    bodies = Bodies(Load(url="http://x", model="m"))
    prompts = [json.loads(bodies.body(each))["prompt"] for each in (first, second, third)]
    assert list(map(len, prompts)) == [1100, 1030, 900]
    assert prompts[0][:1024] == prompts[1][:1024]
    assert prompts[0][1024:1030] != prompts[1][1024:]
    assert prompts[2][:512] == prompts[0][:512]
    assert prompts[2][512:520] != prompts[0][512:520]


def test_runs_have_prompts_of_their_own(tmp_path):
    load, requests = Load(url="http://x", model="m"), all_of(mooncake(tmp_path))
    runs = [
        [json.loads(bodies.body(each))["prompt"] for each in requests] for bodies in map(partial(Bodies, load), "aab")
    ]
    assert runs[0] == runs[1]
    assert [len(prompt) for prompt in runs[0]] == [len(prompt) for prompt in runs[2]]
    assert all(ours[:8] != theirs[:8] for ours, theirs in zip(runs[0], runs[2], strict=True))


@pytest.mark.parametrize(
    "text",
    [
        BURST + "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,0,1087,API log\n118,GPT-4,417,276,693,API log\n",
        BURST_3 + "1005.0,a,43,GPT-4,472,18,490,x\n1045.0,b,2,GPT-4,9,0,9,x\n1118.0,c,2,ChatGPT,417,276,693,x\n",
    ],
    ids=["six columns", "eight columns"],
)
def test_burst_gpt_with_or_without_sessions_and_without_what_had_failed(tmp_path, text):
    assert all_of(written(tmp_path, text)) == [Request(472, 18, at=0.0), Request(417, 276, at=113.0)]


def test_share_gpt_asks_the_first_question_for_as_much_as_was_answered(tmp_path):
    turns = [
        {"from": "human", "value": "12345678"},
        {"from": "gpt", "value": "x" * 40},
        {"from": "human", "value": "y"},
    ]
    others = [{"conversations": turns[1:]}, {"conversations": []}]
    path = written(tmp_path, json.dumps([{"id": "a", "conversations": turns}, *others]))
    requests = list(islice(read(path, 0, counter(None)), 3))
    assert requests == [Request(2, 10, text="12345678")] * 3
    body = json.loads(Bodies(Load(url="http://x", model="m")).body(requests[0]))
    assert (body["prompt"], body["max_tokens"]) == ("12345678", 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "neither a Mooncake trace"),
        (json.dumps(MOONCAKE[0]) + '\n{"input_length": 3}\n', ":2: not a line of a Mooncake trace"),
        (BURST + "5,a,b,c,d,e\n", ":2: not a line of a BurstGPT trace"),
        ("[1, 2", "not ShareGPT conversations"),
        ("[]", "no conversation has a question"),
    ],
)
def test_a_file_that_is_not_understood_is_told_with_its_line(tmp_path, text, message):
    with pytest.raises(WorkloadError, match=message):
        all_of(written(tmp_path, text))


def test_what_is_too_long_for_the_server_is_left_out_and_counted(tmp_path):
    workload = Workload(Load(url="http://x", model="m", workload=str(mooncake(tmp_path)), max_context=1060))
    assert [each.prompt for each in workload] == [1030, 900]
    assert workload.left_out == 1


def test_a_trace_is_played_at_its_times(server, tmp_path):
    path = str(mooncake(tmp_path))
    run = server.offer({"itl": 0.001}, workload=path, speed=2.0, max_context=1060)
    arrivals = [stamps[0] for stamps in server.log()]
    assert arrivals[1] - arrivals[0] == pytest.approx(0.25, abs=0.1)
    assert (run.requests, run.left_out, run.input_tokens, run.output_tokens) == (2, 1, 1930, 29)


def test_to_a_closed_loop_a_trace_gives_lengths_alone(server, tmp_path):
    run = server.offer({}, workload=str(mooncake(tmp_path)), concurrency=1, duration=2.0)
    assert (run.requests, run.output_tokens) == (3, 52 + 26 + 3)
    assert run.duration < 2.0


def test_a_file_that_ends_in_nonsense_ends_the_run(server, tmp_path):
    rows = "".join(f"{json.dumps(MOONCAKE[0] | {'timestamp': 10 * i})}\n" for i in range(8))
    with pytest.raises(OfferError, match=":9: not a line of a Mooncake trace"):
        server.offer({}, workload=str(written(tmp_path, rows + "{}\n")))


@pytest.mark.parametrize(
    "text",
    [
        row(input_length=-1),
        row(output_length=float("inf")),
        row(timestamp=float("nan")),
        row(timestamp=10**400),
        row(hash_ids=5),
        f"[{row()}]",
        "[" * 100_000,
        "5",
        BURST_3 + "nan,a,43,GPT-4,472,18,490,x",
        BURST_3 + "5,a,43,GPT-4,-472,18,490,x",
        BURST_3 + f"5,{'a' * 200_000},43,GPT-4,472,18,490,x",
        BURST_3 + "5,a",
    ],
)
def test_a_row_that_no_server_could_be_asked_is_named(tmp_path, text):
    first = "" if text.startswith(BURST_3) else f"{row()}\n"
    with pytest.raises(WorkloadError, match=r"requests:2: not a line of a "):
        all_of(written(tmp_path, first + text))


def test_bytes_that_are_no_text_are_no_trace(tmp_path):
    path = written(tmp_path, row())
    path.write_bytes(b"\xff\xfe" + path.read_bytes())
    with pytest.raises(WorkloadError, match="neither a Mooncake trace"):
        all_of(path)
    path.write_bytes(f"{row()}\n".encode() + b"\xff")
    with pytest.raises(WorkloadError, match="requests:2"):
        all_of(path)
