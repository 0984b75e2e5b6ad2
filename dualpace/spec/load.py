"""Document -> Spec, or everything that is wrong with it at once, each finding at its place in the text."""

import json
import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import NamedTuple, get_args

from pydantic import BaseModel, ValidationError

from dualpace.diagnostic import Diagnostic, Edit, Severity, Span, ordered
from dualpace.spec import schema
from dualpace.spec.document import Document, Mapping, Node, Scalar
from dualpace.spec.models import Spec
from dualpace.spec.partial import read_in_part
from dualpace.spec.scalars import resolve
from dualpace.spec.schema import FieldPath

Kind = tuple[str, str]

# What is wrong with a value, most telling first: of the complaints of a union's branches the first names the finding.
_OUT_OF_RANGE = ("DP105", "out-of-range")
_NO_UNIT = ("DP107", "unit")
_FORMAT = ("DP108", "format")
_WRONG_TYPE = ("DP104", "wrong-type")
_UNKNOWN_VALUE = ("DP106", "unknown-value")
_TELLING = (_OUT_OF_RANGE, _NO_UNIT, _FORMAT, _WRONG_TYPE, _UNKNOWN_VALUE)
_KINDS: dict[str, Kind] = {
    "greater_than": _OUT_OF_RANGE,
    "greater_than_equal": _OUT_OF_RANGE,
    "less_than": _OUT_OF_RANGE,
    "less_than_equal": _OUT_OF_RANGE,
    "finite_number": _OUT_OF_RANGE,
    "value_error": _NO_UNIT,
    "string_pattern_mismatch": _FORMAT,
    "literal_error": _UNKNOWN_VALUE,
}
# How YAML 1.1 writes truth values.
_TRUTH = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


class Loaded(NamedTuple):
    """`spec` is None if the document is no mapping. Fields in `unread` raise UnreadError. Diagnostics are errors."""

    spec: Spec | None
    unread: frozenset[FieldPath]
    diagnostics: tuple[Diagnostic, ...]


class _Faults(NamedTuple):
    """Pydantic's complaints, one a field. `unknown` maps a key that no field has to the field that was meant."""

    unknown: dict[FieldPath, FieldPath | None]
    missing: list[FieldPath]
    wrong: dict[FieldPath, Kind]


def load(document: Document) -> Loaded:
    """What can be read of the spec that `document` holds."""
    if document.root is None:
        return Loaded(None, frozenset(), document.diagnostics)
    try:
        spec = Spec.model_validate(document.data(), strict=True)
    except ValidationError as error:
        faults = _faults(document, error)
        diagnostics = ordered([*document.diagnostics, *_explain(document, faults)])
        if not isinstance(document.root, Mapping):
            return Loaded(None, frozenset(), diagnostics)
        return Loaded(*read_in_part(document, faults.unknown, [*faults.missing, *faults.wrong]), diagnostics)
    return Loaded(spec, frozenset(), document.diagnostics)


def _faults(document: Document, error: ValidationError) -> _Faults:
    unknown: list[FieldPath] = []
    missing: list[FieldPath] = []
    wrong: dict[FieldPath, set[Kind]] = {}
    for complaint in error.errors(include_url=False, include_context=False, include_input=False):
        path = _field_path(complaint["loc"])
        if complaint["type"] == "missing":
            missing.append(path)
        elif complaint["type"] == "extra_forbidden":
            unknown.append((*path, str(complaint["loc"][-1])))
        elif not _of_another_branch(document, path):
            wrong.setdefault(path, set()).add(_KINDS.get(complaint["type"], _WRONG_TYPE))
    return _Faults(
        {path: _meant(path) for path in unknown},
        missing,
        {path: min(kinds, key=_TELLING.index) for path, kinds in wrong.items()},
    )


def _of_another_branch(document: Document, path: FieldPath) -> bool:
    """Whether the value at `path` is a mapping where one may be, and what is wrong with it is said of its keys."""
    return isinstance(document.node(path), Mapping) and bool(schema.properties(schema.field(path)))


def _explain(document: Document, faults: _Faults) -> Iterator[Diagnostic]:
    for path, meant in faults.unknown.items():
        yield _unknown_key(document, path, meant)
    for path in faults.missing:
        if path not in faults.unknown.values():
            yield _missing_key(document, path)
    for path, kind in faults.wrong.items():
        yield _wrong_value(document, path, schema.field(path), kind)


def _field_path(loc: tuple[int | str, ...]) -> FieldPath:
    """The fields in `loc`, without pydantic's names for the branches of unions and keys that no field has."""
    path: list[str] = []
    model: type[BaseModel] | None = Spec
    for step in loc:
        if model and step in model.model_fields:
            path.append(str(step))
            annotation = model.model_fields[str(step)].annotation
            candidates = (annotation, *get_args(annotation))
            model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    return tuple(path)


def _meant(path: FieldPath) -> FieldPath | None:
    """The field that the writer of the unknown key at `path` most likely had in mind."""
    *section, key = path
    everywhere = list(schema.fields())
    for field in everywhere:
        if field[-1] == key:
            return field
    known = {field[-1]: field for field in reversed(everywhere)}
    known |= {name: (*section, name) for name in schema.properties(schema.field(tuple(section)))}
    spelling = _spelling(key)
    siblings = [name for name, field in known.items() if list(field[:-1]) == section]
    close = get_close_matches(spelling, siblings, 1, 0.7) or get_close_matches(spelling, known, 1, 0.8)
    return known[close[0]] if close else None


def _spelling(key: str) -> str:
    return key.lower().replace("-", "_")


def _unknown_key(document: Document, path: FieldPath, meant: FieldPath | None) -> Diagnostic:
    *section, key = path
    span = document.key_span(path)
    message = f"{_dotted(tuple(section))} has no field `{_short(key)}`"
    if meant and meant[-1] == key:
        home = f"under `{_dotted(meant[:-1])}`" if meant[:-1] else "to the top level"
        return _error(span, ("DP102", "misplaced-key"), message, f"move it {home}")
    if meant:
        help_ = f"did you mean `{meant[-1]}`?" if list(meant[:-1]) == section else f"did you mean `{_dotted(meant)}`?"
        if meant == (*section, _spelling(key)) and document.node(meant) is None:
            return _error(span, ("DP101", "unknown-key"), message, help_, meant[-1])
    else:
        help_ = f"its fields are {', '.join(schema.properties(schema.field(tuple(section))))}"
    return _error(span, ("DP101", "unknown-key"), message, help_)


def _missing_key(document: Document, path: FieldPath) -> Diagnostic:
    message = f"{_dotted(path[:-1])} lacks `{path[-1]}`"
    help_ = f"add {_example(path)}: {_description(path)}"
    return _error(document.key_span(path[:-1]), ("DP103", "missing-key"), message, help_)


def _wrong_value(document: Document, path: FieldPath, field: schema.Fragment, kind: Kind) -> Diagnostic:
    node = document.node(path)
    bare = isinstance(node, Scalar) and isinstance(node.value, int | float)
    unit = ", a number without a unit" if kind == _NO_UNIT and bare else ""
    message = f"{_dotted(path)} is {_shown(node)}{unit}: must be {schema.expectation(field)}"
    close = get_close_matches(node.text, schema.choices(field), 1) if isinstance(node, Scalar) else []
    respelt = _respelt(node, field) if isinstance(node, Scalar) else None
    if respelt:
        help_ = f"write `{path[-1]}: {respelt}`"
    elif close:
        help_ = f"did you mean `{close[0]}`?"
    elif "examples" in field:
        help_ = f"for example {_example(path)}: {_description(path)}"
    else:
        help_ = "give it fields, or remove the key"
    return _error(document.span(path), kind, message, help_, respelt)


def _respelt(node: Scalar, field: schema.Fragment) -> str | None:
    """What `node` says as a value of `field`, if only letter case, quotes or a word for a truth value are amiss."""
    bare = resolve(node.text)
    for option in schema.options(field):
        words = schema.choices(option)
        if node.text.lower() in words:
            return node.text.lower()
        match option["type"], bare:
            case "boolean", str() if node.text.lower() in _TRUTH:
                return _TRUTH[node.text.lower()]
            case "integer" | "number", bool():
                continue
            case ("integer", int()) | ("number", int() | float()) if isinstance(node.value, str):
                return node.text
            case "string", int() | float() if not words and re.search(option.get("pattern", ""), node.text):
                return f'"{node.text}"'
    return None


def _error(span: Span, kind: Kind, message: str, help_: str, respelt: str | None = None) -> Diagnostic:
    fix = (Edit(span, respelt),) if respelt else ()
    return Diagnostic(*kind, Severity.ERROR, message, help_, span, fix)


def _dotted(path: FieldPath) -> str:
    return ".".join(path) or "the spec"


def _description(path: FieldPath) -> str:
    field = schema.field(path)
    return str(field.get("description") or schema.options(field)[0]["description"])


def _example(path: FieldPath) -> str:
    examples = schema.field(path).get("examples")
    return f"`{path[-1]}: {_written(examples[0])}`" if examples else f"`{path[-1]}:`"


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}..."


def _shown(node: Node | None) -> str:
    match node:
        case Scalar(value=None):
            return "empty"
        case Scalar(value=str(), text=text):
            return f'"{_short(text)}"'
        case Scalar(text=text):
            return _short(text)
        case Mapping():
            return "a mapping"
        case _:
            return "a list"
