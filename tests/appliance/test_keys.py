"""API keys: what a key may use, and files that change while they are served."""

import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2 as httpx
import pytest

from dualpace.appliance import keys as keys_module
from dualpace.appliance.errors import ApiError
from dualpace.appliance.keys import Account, Keys
from dualpace.appliance.ledger import Ledger, name_of
from dualpace.plan.api_keys import MOST_KEYS, ApiKey, parse_api_keys

from .conftest import Frontend, ServeToy, wait_for
from .fake_ring import FakeRing

BODY = {"model": "toy", "prompt": [5] * 10, "max_tokens": 10}


def ask(toy: Frontend, key: str, **fields: object) -> httpx.Response:
    return toy.http.post("/v1/completions", json=BODY | fields, headers={"Authorization": f"Bearer {key}"})


def test_lines_hold_a_key_and_limits_of_its_own():
    text = b"# Alice's\nsk-a\n\n  sk-b requests=8 \nsk-c\ttokens_per_minute=100 requests=2\n"
    assert parse_api_keys(text) == (ApiKey(b"sk-a"), ApiKey(b"sk-b", 8), ApiKey(b"sk-c", 2, 100))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"sk-a\nsk-b request=8", "line 2 has more than a key"),
        (b"sk-a requests=0", "line 1 has more than a key"),
        (b"sk-a requests=" + b"9" * 5000, "line 1 has more than a key"),
        ("sk-a requests=\u0663".encode(), "line 1 has more than a key"),
        (b"sk-a second", "line 1 has more than a key"),
        (b"sk-a\n#\nsk-a requests=1", "line 3 has a key again"),
        (b"".join(b"sk-%d\n" % i for i in range(MOST_KEYS + 1)), "line 4097 has one key more"),
    ],
)
def test_a_line_that_is_not_understood_is_named_without_its_key(text: bytes, message: str):
    with pytest.raises(ValueError, match=message) as caught:
        parse_api_keys(text)
    assert "sk-" not in str(caught.value)


def test_a_key_has_so_many_requests_at_once_and_leaves_others_alone(serve: ServeToy, tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("alice requests=2\nbob\n")
    toy = serve(FakeRing(held=True), api_key_file=str(file))
    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(ask, toy, "alice") for _ in range(2)]
        wait_for(lambda: toy.ring.running == 2)
        refused = ask(toy, "alice")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "may have 2 at once" in refused.json()["error"]["message"]
        assert int(refused.headers["retry-after"]) >= 1
        running.append(pool.submit(ask, toy, "bob"))
        wait_for(lambda: toy.ring.running == 3)
        toy.ring.hold(False)
        assert {future.result().status_code for future in running} == {200}
    assert ask(toy, "alice").status_code == 200


def test_tokens_that_were_used_are_waited_for(serve: ServeToy, tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("alice tokens_per_minute=30\nbob\n")
    toy = serve(api_key_file=str(file))
    assert [ask(toy, "alice", stream=streamed).status_code for streamed in (False, True)] == [200, 200]
    refused = ask(toy, "alice")
    assert refused.status_code == 429
    assert "its 30 tokens a minute" in refused.json()["error"]["message"]
    assert 15 <= int(refused.headers["retry-after"]) <= 22
    assert ask(toy, "bob").status_code == 200


def test_tokens_come_back_evenly_and_no_more_than_a_minutes():
    now = [0.0]
    limits = ApiKey(b"key", None, 60)
    account = accounts(limits, Ledger(), now)[0]
    account.spend(90)
    assert refusal(account) == 31
    now[0] = 29.5
    assert refusal(account) == 2
    now[0] = 31.0
    assert refusal(account) is None
    now[0] = 1000.0
    assert refusal(account) is None
    account.spend(60)
    assert refusal(account) == 1
    now[0] = 2000.0
    account.spend(90)
    assert refusal(account) == 31


def accounts(limits: ApiKey, ledger: Ledger, now: list[float]) -> list[Account]:
    keys = Keys("none", [limits], ledger, lambda: now[0])
    return [keys.account(limits.key)]


def refusal(account: Account) -> int | None:
    """When there may be another request; None if now."""
    try:
        with account.request():
            return None
    except ApiError as error:
        return error.retry_after


def test_limits_are_of_all_frontends_together(tmp_path: Path):
    now, limits = [0.0], ApiKey(b"key", 2, 60)
    first, second = (Ledger(tmp_path / "rings", frontend, 2) for frontend in range(2))
    (here,), (there,) = (accounts(limits, ledger, now) for ledger in (first, second))
    with here.request(), there.request():
        assert [refusal(account) for account in (here, there)] == [1, 1]
    here.spend(50)
    there.spend(40)
    assert [refusal(account) for account in (here, there)] == [31, 31]
    now[0] = 31.0
    assert [refusal(account) for account in (here, there)] == [None, None]


def test_what_a_dead_frontend_had_under_way_is_over_when_it_is_back(tmp_path: Path):
    now, limits = [0.0], ApiKey(b"key", 1, 60)
    first, second = (Ledger(tmp_path / "rings", frontend, 2) for frontend in range(2))
    (here,) = accounts(limits, first, now)
    (there,) = accounts(limits, second, now)
    dies = there.request()
    dies.__enter__()
    there.spend(10)
    assert refusal(here) == 1
    (back,) = accounts(limits, Ledger(tmp_path / "rings", 1, 2), now)
    assert [refusal(account) for account in (here, back)] == [None, None]


def test_what_was_spent_is_read_as_it_is_while_keys_come_and_go(tmp_path: Path):
    here, there = (Ledger(tmp_path / "rings", frontend, 2) for frontend in range(2))
    key, *others = (name_of(b"%d" % i) for i in range(500))
    there.open([key])
    there.add(key, requests=2, tokens=7)
    seen: set[tuple[int, int]] = set()
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            seen.add(here.totals(key))

    reader = threading.Thread(target=read)
    reader.start()
    for begin in range(200):
        there.open([*others[begin : begin + 250], key])
    over.set()
    reader.join()
    assert seen == {(2, 7)}
    assert there.totals(others[0]) == (0, 0)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module, "LOOK_S", 0.02)


def replace(file: Path, text: str) -> None:
    """As an editor or a mounted secret does it."""
    other = file.with_suffix(".new")
    other.write_text(text)
    os.utime(other, ns=(time.time_ns(), time.time_ns()))
    other.rename(file)


@pytest.mark.usefixtures("at_once")
def test_a_changed_file_is_followed_without_a_restart(serve: ServeToy, tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("old\nkept\n")
    toy = serve(api_key_file=str(file))
    assert [ask(toy, key).status_code for key in ("old", "kept", "new")] == [200, 200, 401]
    replace(file, "kept\nnew\n")
    wait_for(lambda: ask(toy, "new").status_code == 200)
    assert [ask(toy, key).status_code for key in ("old", "kept", "new")] == [401, 200, 200]


@pytest.mark.parametrize("text", [None, "", "key requests=none\n"])
def test_a_file_that_cannot_be_read_any_more_leaves_the_keys_as_they_were(
    tmp_path: Path, text: str | None, caplog: pytest.LogCaptureFixture
):
    file = tmp_path / "keys"
    file.write_text("key\n")
    keys = Keys(str(file), parse_api_keys(file.read_bytes()), Ledger())
    file.unlink() if text is None else replace(file, text)
    with caplog.at_level(logging.ERROR):
        keys.look()
        keys.look()
        assert keys.account(b"key")
    (record,) = caplog.records
    assert record.getMessage().startswith("what was read before stays in use: ")
    assert str(file) in record.getMessage()


def test_what_a_key_has_used_outlasts_a_change_of_another(tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("key tokens_per_minute=10\n")
    keys = Keys(str(file), parse_api_keys(file.read_bytes()), Ledger())
    account = keys.account(b"key")
    account.spend(5)
    replace(file, "other\nkey tokens_per_minute=10\n")
    keys.look()
    account.spend(6)
    assert refusal(account) == 12
    assert keys.account(b"other")
    assert keys.account(b"key") is account
    replace(file, "key tokens_per_minute=20\n")
    keys.look()
    assert keys.account(b"key") is not account
    assert keys.account(b"other") is None
