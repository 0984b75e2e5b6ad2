"""A spec with some of its values changed, as `--what-if key=value` says it."""

import json
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from dualpace.plan.error import PlanError
from dualpace.plan.plan import Plan
from dualpace.plan.resolve import resolve
from dualpace.spec import schema
from dualpace.spec.compose import compose
from dualpace.spec.document import Document
from dualpace.spec.load import load
from dualpace.spec.schema import FieldPath


class WhatIfError(ValueError):
    """A change that names no field, or a spec that cannot be planned with it; the message says which and why."""


class Change(NamedTuple):
    """A field and the value it is given."""

    path: FieldPath
    text: str
    value: object

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}={self.text}"


def parse_change(text: str) -> Change:
    """The change that `key=value` means. The key is a field's dotted path, or the end of one if no other ends so.

    The value is YAML. Raises WhatIfError.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise WhatIfError(f"{text}: this is not a key and a value; write it like max_batch=64")
    written = compose(value.encode(errors="surrogateescape"), text)
    if written.diagnostics:
        first = written.diagnostics[0]
        reason = f"{first.message}; {first.help}" if value.strip() else "there is no value; `null` takes one away"
        raise WhatIfError(f"{text}: {reason}")
    return Change(_field(key.strip()), value.strip(), written.data())


def changed_plan(document: Document, changes: Sequence[Change], base: Path, hub_cache: Path | None) -> Plan:
    """The plan of `document` with all of `changes`. Raises WhatIfError."""
    data: Any = document.data()
    for change in changes:
        _set(data, change.path, change.value)
    said = ", ".join(map(str, changes))
    # JSON is YAML, so the changed spec is read like any other.
    loaded = load(compose(json.dumps(data).encode(), document.file))
    if loaded.spec is None or loaded.diagnostics:
        raise WhatIfError("\n".join(f"{said}: {d.message}; {d.help}" for d in loaded.diagnostics))
    try:
        return resolve(loaded.spec, base, hub_cache)
    except PlanError as error:
        raise WhatIfError(f"{said}: {error}") from error


def _field(key: str) -> FieldPath:
    named = tuple(key.split("."))
    known = list(schema.fields())
    found = [path for path in known if path[-len(named) :] == named]
    if len(found) == 1:
        return found[0]
    if found:
        raise WhatIfError(f"{key} could be {' or '.join(map('.'.join, found))}; write one of them")
    names = {path[-1]: path for path in reversed(known)} | {".".join(path): path for path in known}
    close = list(dict.fromkeys(".".join(names[name]) for name in get_close_matches(key, names, 3, 0.7)))
    sections = ", ".join(schema.properties(schema.field(())))
    raise WhatIfError(
        f"{key} is no field of a spec; " + (f"did you mean {' or '.join(close)}?" if close else f"it has {sections}")
    )


def _set(data: dict[str, Any], path: FieldPath, value: object) -> None:
    """Give the field at `path` a value, and a section that is not there its place."""
    *sections, name = path
    for section in sections:
        if not isinstance(data.get(section), dict):
            data[section] = {}
        data = data[section]
    data[name] = value
