"""Chat templates: from messages to the prompt that a model was trained on.

Templates are programs out of a model file, so they run in Jinja's sandbox, with the names and
settings that transformers gives them (transformers/utils/chat_template_utils.py).
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from anespec.manifests.errors import RequestError
from anespec.manifests.wording import printable

MAX_CHARACTERS = 1 << 24
MAX_POWER_BITS = 1 << 12
LONGEST_REASON = 400


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, object]],
    *,
    add_generation_prompt: bool,
    bos: str,
    eos: str,
    variables: Mapping[str, object] | None = None,
) -> str:
    """The prompt for `messages` (role, content and what else the template reads).

    `bos` and `eos` are the texts of those tokens, `variables` further names for the template, such as
    `tools`. Encode the result with `parse_special`, and without `add_special` where it begins with BOS.

    Raises:
        RequestError: the template is not valid, refuses these messages, does something forbidden or
            grows without bound.
    """
    names = {
        **(variables or {}),
        "messages": messages,
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos,
        "eos_token": eos,
    }
    pieces: list[str] = []
    characters = 0
    try:
        for piece in _compile(template).generate(**names):
            pieces.append(piece)
            characters += len(piece)
            if characters > MAX_CHARACTERS:
                raise SecurityError(f"it writes more than {MAX_CHARACTERS} characters")
    # A template can raise anything that Python can, and running out of stack or memory is its failure too.
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise RequestError(
            f"the model's chat template cannot render this conversation: {printable(reason, LONGEST_REASON)}"
        ) from error
    return "".join(pieces)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, which also refuses to compute values of absurd size."""

    intercepted_binops = frozenset({"+", "*", "**"})

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        if operator == "*":
            for text, count in ((left, right), (right, left)):
                if isinstance(text, str | list | tuple) and isinstance(count, int):
                    _refuse_over(MAX_CHARACTERS, len(text) * count)
        elif operator == "+":
            if isinstance(left, str) and isinstance(right, str):
                _refuse_over(MAX_CHARACTERS, len(left) + len(right))
        elif isinstance(left, int) and isinstance(right, int):
            _refuse_over(MAX_POWER_BITS, left.bit_length() * right)
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}`, which marks the assistant's words for training: here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 (declared so by Jinja)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


@lru_cache(maxsize=16)
def _compile(template: str) -> Template:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)


def _refuse_over(limit: int, size: int) -> None:
    if size > limit:
        raise SecurityError(f"it computes a value of size {size}; the limit is {limit}")


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
