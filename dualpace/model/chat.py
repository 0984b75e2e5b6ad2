"""A model's chat template: messages -> the text that the model was trained to continue."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dualpace.model.error import ModelError
from dualpace.model.tokenizer import Tokenizer
from dualpace.plan.manifest import CHAT_TEMPLATE, GENERATION, Generation


class ChatError(ModelError):
    """Messages that cannot be rendered; the message is a sentence for the client."""


class ChatTemplate:
    """A chat template; `special_tokens` are variables of it by name, such as `bos_token`."""

    def __init__(self, source: str | None, special_tokens: Mapping[str, str]) -> None:
        """Compile `source`, which is None for a model without a template. Raises ChatError on a syntax error."""
        self._special_tokens = dict(special_tokens)
        try:
            self._template = None if source is None else _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise ChatError(f"The model's chat template is not valid: {error}.") from error

    @property
    def exists(self) -> bool:
        """Whether the model has one."""
        return self._template is not None

    @classmethod
    def load(cls, bundle: Path, tokenizer: Tokenizer) -> "ChatTemplate":
        """The chat template of `bundle`. Raises ChatError on a syntax error."""
        file = bundle / CHAT_TEMPLATE
        generation = Generation.model_validate_json((bundle / GENERATION).read_bytes())
        ids = {"bos_token": generation.bos_token, "eos_token": next(iter(generation.eos_tokens), None)}
        texts = {name: tokenizer.token_text(token) for name, token in ids.items() if token is not None}
        special_tokens = {name: text for name, text in texts.items() if text is not None}
        return cls(file.read_text(encoding="utf-8") if file.is_file() else None, special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt for `messages`, special tokens written out. Raises ChatError."""
        if self._template is None:
            raise ChatError(
                "The model has no chat template: use /v1/completions, or name a template in serving.chat_template."
            )
        context = {"documents": None, **self._special_tokens, **variables}
        try:
            return self._template.render(
                messages=messages, tools=tools, add_generation_prompt=add_generation_prompt, **context
            )
        # A template computes with what the client sent, so any plain error means messages that it does not take.
        except (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ChatError(f"The model's chat template refuses these messages: {error}") from error


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; serving renders what it encloses."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it; Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
