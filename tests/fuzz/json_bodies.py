"""Fuzzes bodies of requests: `python -m tests.fuzz.json_bodies -max_total_time=300`.

The first byte of an input chooses the route; the rest is the body. Half of the mutations are of its JSON, the others of
its bytes.
"""

import atheris

with atheris.instrument_imports(include=["dualpace.appliance"]):
    import json
    import random
    from typing import Any

    from dualpace.appliance.schema import FIELDS
    from tests.fuzz import campaign
    from tests.fuzz.frontend import Frontend, check_answer

FRONTEND = Frontend()
PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")
NAMES = sorted({*FIELDS, "tokens", "add_special_tokens"})
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63), 10**30, 0.5, 1e308, "", "x", "toy", "\ud800", "🙂", "\0", [],
    {},
    [0], [5, 6], [[5]], ["x"], {"5": 1}, {"type": "text", "text": "x"}, [{"role": "user", "content": "x"}],
)  # fmt: skip


def test(data: bytes) -> None:
    """Post an input, and see that the answer is one."""
    path = PATHS[data[0] % len(PATHS)] if data else PATHS[0]
    asked = [{"type": "http.request", "body": data[1:], "more_body": False}]
    sent: list[dict[str, Any]] = []
    scope = {
        "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": path, "query_string": b"",
        "raw_path": path.encode(), "root_path": "", "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2), "state": {},
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return asked.pop() if asked else await FRONTEND.loop.create_future()

    async def send(message: Any) -> None:
        sent.append(message)

    async def ask() -> None:
        nonlocal task
        task = FRONTEND.loop.create_task(FRONTEND.app(scope, receive, send))

    task: Any = None
    FRONTEND.run(ask, lambda: task.done())
    task.result()
    content_type = dict(sent[0]["headers"]).get(b"content-type", b"")
    check_answer(sent[0]["status"], content_type, b"".join(message["body"] for message in sent[1:]))


def mutate(data: bytes, size: int, seed: int) -> bytes:
    """Change a place of the JSON in an input; its bytes, if it is none."""
    chance = random.Random(seed)
    try:
        body = json.loads(data[1:])
    except (ValueError, RecursionError):
        return atheris.Mutate(data, size)
    if chance.random() < 0.5:
        return atheris.Mutate(data, size)
    changed = json.dumps(_changed(body, chance), ensure_ascii=chance.random() < 0.8)
    mutated = data[:1] + changed.encode("utf-8", "surrogatepass")
    return mutated if len(mutated) <= size else atheris.Mutate(data, size)


def _changed(value: Any, chance: random.Random) -> Any:
    if isinstance(value, dict) and value and chance.random() < 0.8:
        name = chance.choice(list(value))
        match chance.randrange(4):
            case 0:
                return {key: other for key, other in value.items() if key != name}
            case 1:
                return value | {chance.choice(NAMES): chance.choice(VALUES)}
            case _:
                return value | {name: _changed(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        match chance.randrange(3):
            case 0:
                return value[:place] + value[place + 1 :]
            case 1:
                return value[:place] + [value[place]] * chance.randrange(1, 9) + value[place:]
            case _:
                return [*value[:place], _changed(value[place], chance), *value[place + 1 :]]
    return chance.choice(VALUES)


if __name__ == "__main__":
    campaign.run("json", test, custom_mutator=mutate)
