"""A spec of which some fields could not be read: the others as they are, those unread until someone asks for them.

So what is wrong with one part of a spec does not keep the rules from what is wrong with another.
"""

from collections.abc import Iterable
from typing import Any

from dualpace.spec import schema
from dualpace.spec.document import Document
from dualpace.spec.models import Section, Spec
from dualpace.spec.schema import FieldPath


def read_in_part(
    document: Document, unknown: dict[FieldPath, FieldPath | None], faulty: Iterable[FieldPath]
) -> tuple[Spec, frozenset[FieldPath]]:
    """The spec without `unknown` keys and `faulty` fields, and the fields left unread: faulty ones and meant ones."""
    data: Any = document.data()
    for *section, key in unknown:
        _at(data, section).pop(key)
    # Sections before their fields: of a section that cannot be read no field can.
    wanted = sorted({*faulty, *(meant for meant in unknown.values() if meant)}, key=len)
    unread = frozenset(_stand_in(data, path) for path in wanted)
    spec = Spec.model_validate(data, strict=True)
    for path in unread:
        _forget(spec, path)
    return spec, unread


def _at(data: Any, path: Iterable[str]) -> Any:
    for step in path:
        data = data[step]
    return data


def _stand_in(data: Any, path: FieldPath) -> FieldPath:
    """Make `data` valid at `path` with what no rule will see; the path of what is unread for it, maybe a section."""
    for depth, step in enumerate(path[:-1]):
        if not isinstance(data.get(step), dict):
            return path[: depth + 1]
        data = data[step]
    if "examples" in schema.field(path) or path[-1] in _required(path[:-1]):
        data[path[-1]] = _least(path)
    else:
        data.pop(path[-1], None)
    return path


def _required(section: FieldPath) -> Iterable[str]:
    required: list[str] = schema.options(schema.field(section))[0].get("required", [])
    return required


def _least(path: FieldPath) -> Any:
    """The least that is valid at `path`: an example, or a section with what it has to have."""
    fragment = schema.field(path)
    if "examples" in fragment:
        return fragment["examples"][0]
    return {name: _least((*path, name)) for name in _required(path)}


def _forget(spec: Spec, path: FieldPath) -> None:
    section: object = spec
    for step in path[:-1]:
        section = section.__dict__.get(step)
    if isinstance(section, Section):
        section.__dict__.pop(path[-1], None)
