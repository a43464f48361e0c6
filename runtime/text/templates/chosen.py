"""Read the chat template that the user chose: a built-in one, or a file."""

import re
from pathlib import Path

from anespec.runtime.text.templates.built_in import BUILT_IN_TEMPLATES, BuiltInTemplate
from anespec.runtime.text.templates.rendering import render_chat
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import RequestError
from anespec.system.formatting import listed
from anespec.system.safe_files import read_bounded

MAX_TEMPLATE_BYTES = 1 << 20
"""The largest template file. The longest published templates have some 20,000 bytes."""


_MARKER = re.compile(r"<\|[^<>|\s]+\|>|<(?:start|end)_of_turn>")
_TRIAL = (
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Hello"},
)


def read_template(chosen: Path) -> BuiltInTemplate:
    """Return the built-in template of this name, or the template in the file at this path.

    Raises:
        RequestError: there is neither, or the file is not a valid template.
    """
    if str(chosen) in BUILT_IN_TEMPLATES:
        return BUILT_IN_TEMPLATES[str(chosen)]
    try:
        text = read_bounded(chosen, MAX_TEMPLATE_BYTES).decode()
    except FileNotFoundError:
        names = listed(list(BUILT_IN_TEMPLATES), "and")
        raise RequestError(
            f"{chosen}: is neither a file nor a built-in chat template; these are {names}"
        ) from None
    except OSError as error:
        raise RequestError(f"{chosen}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise RequestError(f"{chosen}: is not UTF-8 text, so it is not a chat template") from None
    try:
        require_renderable(text)
    except RequestError as error:
        raise RequestError(f"{chosen}: {error}") from None
    return BuiltInTemplate(text)


def require_renderable(text: str) -> None:
    """Check that a template can render a user's first message; raise RequestError if it cannot."""
    render_chat(text, _TRIAL[:1], add_generation_prompt=True, bos="", eos="")


def with_template(tokenizer: Tokenizer, chosen: Path) -> Tokenizer:
    """Return the tokenizer with the chosen chat template; raise RequestError as `read_template` does."""
    template = read_template(chosen)
    is_built_in = str(chosen) in BUILT_IN_TEMPLATES
    begins = "{{ bos_token }}" if is_built_in and tokenizer.adds_bos else ""
    ends = tuple(text for text in template.ends if not _is_token(tokenizer, text))
    return tokenizer.with_chat_template(begins + template.text, ends, template.is_spaced)


def missing_tokens(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the special tokens that the chat template writes, but the vocabulary does not have."""
    if tokenizer.chat_template is None:
        return ()
    try:
        written = render_chat(tokenizer.chat_template, _TRIAL, add_generation_prompt=True, bos="", eos="")
    except RequestError:
        # The template may need something that this conversation does not have; its tokens stay unknown.
        return ()
    found = dict.fromkeys(_MARKER.findall(written))
    return tuple(text for text in found if not _is_token(tokenizer, text))


def _is_token(tokenizer: Tokenizer, text: str) -> bool:
    return len(tokenizer.encode(text, add_special=False, parse_special=True)) == 1
