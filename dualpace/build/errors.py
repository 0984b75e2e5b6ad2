"""What can go wrong in a build, and how a compiler's complaint leads back to a template and a value of the spec."""

import posixpath
import re
from collections.abc import Mapping

from dualpace.render.sources import template_of

CONFIG = "common/config.hpp"
# `constexpr int kPageSize = 16;  // attention.page_size`: what the constant is and the spec key that it comes from.
_CONSTANT = re.compile(r"constexpr \S+ (k\w+)(?:\[\w+\])? = (.+);\s+// ([a-z_]+(?:\.[a-z_]+)+)$", re.MULTILINE)
# g++ writes `path:line:column: error: text`, nvcc `path(line): error: text`.
_COMPLAINT = re.compile(
    r"^(?P<path>[\w./+-]+?)(?::(?P<a>\d+)(?::\d+)?:|\((?P<b>\d+)\):) (?:fatal )?error: (?P<text>.+)$"
)


class BuildError(Exception):
    """A build that cannot go on; one line with the remedy.

    `key` is the spec's key that it is about, like `target.count`, or ""; `output` is the compiler's own text, or "".
    """

    def __init__(self, message: str, key: str = "", output: str = "") -> None:
        super().__init__(message)
        self.key = key
        self.output = output


def compile_error(source: str, output: str, sources: Mapping[str, str]) -> BuildError:
    """The error of a failed compile of `source` from the compiler's `output`.

    Names the template and line of the first complaint, and every value of the spec that the complaint's line uses.
    """
    for complaint in filter(None, map(_COMPLAINT.match, output.splitlines())):
        path, line = posixpath.normpath(complaint["path"]), int(complaint["a"] or complaint["b"])
        if path in sources:
            values = _spec_values(_statement(sources[path], line), sources.get(CONFIG, ""))
            because = "".join(f"; {constant} is {value} from {key}" for constant, value, key in values)
            message = f"{template_of(path)}: line {line} of {path}: {complaint['text']}{because}"
            return BuildError(message, values[0][2] if values else "", output)
    return BuildError(f"{template_of(source)} does not compile; the compiler's text is above", output=output)


def _statement(text: str, line: int) -> str:
    """`line` (from 1) of `text` and what follows, up to the line that ends the statement."""
    lines = text.splitlines()[line - 1 :]
    last = next((number for number, content in enumerate(lines) if ";" in content), 0)
    return "\n".join(lines[: last + 1])


def _spec_values(statement: str, config: str) -> list[tuple[str, str, str]]:
    """(constant, value, spec key) of each constant named in `statement` that a key sets."""
    names = set(re.findall(r"\bk[A-Z]\w*", statement))
    return [(match[1], match[2], match[3]) for match in _CONSTANT.finditer(config) if match[1] in names]
