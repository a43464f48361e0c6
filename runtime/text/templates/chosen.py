"""The chat template that a person chose: one of the built-in ones, or that of a file."""

import re
from pathlib import Path

from anespec.runtime.text.templates.built_in import BUILT_IN_TEMPLATES, BuiltInTemplate
from anespec.runtime.text.templates.rendering import render_chat
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import RequestError
from anespec.system.formatting import listed
from anespec.system.safe_files import read_bounded

LARGEST_TEMPLATE = 1 << 20
"""Bytes. The longest of models that are published have some 20,000."""


_MARKER = re.compile(r"<\|[^<>|\s]+\|>|<(?:start|end)_of_turn>")
_TRIAL = (
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Hello"},
)


def read_template(chosen: Path) -> BuiltInTemplate:
    """The template of a name of `BUILT_IN_TEMPLATES`, or of a file.

    Raises:
        RequestError: it is neither, or the file holds no template.
    """
    if str(chosen) in BUILT_IN_TEMPLATES:
        return BUILT_IN_TEMPLATES[str(chosen)]
    try:
        text = read_bounded(chosen, LARGEST_TEMPLATE).decode()
    except FileNotFoundError:
        names = listed(list(BUILT_IN_TEMPLATES), "and")
        raise RequestError(f"{chosen}: is no file and no chat template; there are {names}") from None
    except OSError as error:
        raise RequestError(f"{chosen}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise RequestError(f"{chosen}: is not UTF-8 text, so it is no chat template") from None
    try:
        require_renderable(text)
    except RequestError as error:
        raise RequestError(f"{chosen}: {error}") from None
    return BuiltInTemplate(text)


def require_renderable(text: str) -> None:
    """Raise RequestError where a template refuses a first message."""
    render_chat(text, _TRIAL[:1], add_generation_prompt=True, bos="", eos="")


def with_template(tokenizer: Tokenizer, chosen: Path) -> Tokenizer:
    """The tokenizer with another chat template; raises RequestError as `read_template` does."""
    template = read_template(chosen)
    is_built_in = str(chosen) in BUILT_IN_TEMPLATES
    begins = "{{ bos_token }}" if is_built_in and tokenizer.adds_bos else ""
    ends = tuple(text for text in template.ends if not _is_token(tokenizer, text))
    return tokenizer.with_chat_template(begins + template.text, ends, template.is_spaced)


def missing_tokens(tokenizer: Tokenizer) -> tuple[str, ...]:
    """The special tokens that the chat template writes and the vocabulary does not have."""
    if tokenizer.chat_template is None:
        return ()
    try:
        written = render_chat(tokenizer.chat_template, _TRIAL, add_generation_prompt=True, bos="", eos="")
    except RequestError:
        # A template may want what this conversation has not; which tokens it writes then is not known.
        return ()
    found = dict.fromkeys(_MARKER.findall(written))
    return tuple(text for text in found if not _is_token(tokenizer, text))


def _is_token(tokenizer: Tokenizer, text: str) -> bool:
    return len(tokenizer.encode(text, add_special=False, parse_special=True)) == 1
