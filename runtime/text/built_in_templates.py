"""Well-known chat templates by name, for models that come without one, or with a wrong one.

Each is written after what the family's first models were published with. None writes the BOS token at its
beginning, since the vocabulary determines whether a model needs it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from anespec.runtime.text.chat import render_chat
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import RequestError
from anespec.system.formatting import listed
from anespec.system.safe_files import read_bounded

_SYSTEM_FIRST = (
    "{% if messages[0].role == 'system' %}"
    "{% set system = messages[0].content | trim %}{% set messages = messages[1:] %}"
    "{% endif %}"
)
"""Sets `system` apart where a family has no turn for it; undefined where the system says nothing."""

_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_LLAMA2 = _SYSTEM_FIRST + (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}{{ ' ' + message.content | trim + ' ' + eos_token }}"
    "{% else %}"
    "{% if not loop.first %}{{ bos_token }}{% endif %}"
    "{{ '[INST] ' }}"
    "{% if loop.first and system %}{{ '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' }}{% endif %}"
    "{{ message.content | trim + ' [/INST]' }}"
    "{% endif %}{% endfor %}"
)

_LLAMA3 = (
    "{% for message in messages %}"
    "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}"
    "{{ message.content | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)

_GEMMA = _SYSTEM_FIRST + (
    "{% for message in messages %}"
    "{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}"
    "{% if loop.first and system %}{{ system + '\\n\\n' }}{% endif %}"
    "{{ message.content | trim + '<end_of_turn>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)

_PHI3 = (
    "{% for message in messages %}"
    "{{ '<|' + message.role + '|>\\n' + message.content + '<|end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)

_MISTRAL = _SYSTEM_FIRST + (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}{{ ' ' + message.content | trim + eos_token }}"
    "{% else %}"
    "{{ '[INST] ' }}"
    "{% if loop.first and system %}{{ system + '\\n\\n' }}{% endif %}"
    "{{ message.content + '[/INST]' }}"
    "{% endif %}{% endfor %}"
)

_PLAIN = _SYSTEM_FIRST + (
    "{% if system %}{{ system + '\\n\\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ ('Assistant: ' if message.role == 'assistant' else 'User: ') + message.content | trim + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


@dataclass(frozen=True)
class BuiltInTemplate:
    """A template, and the texts of which each ends an answer where it is no token of the vocabulary.

    `is_spaced`: it writes a space of its own before each answer, but for the one that is asked for.
    """

    text: str
    ends: tuple[str, ...] = ()
    is_spaced: bool = False


PLAIN = "plain"
"""The one for models that were taught no other: lines of `User:` and `Assistant:`."""

BUILT_IN_TEMPLATES: Mapping[str, BuiltInTemplate] = MappingProxyType(
    {
        "chatml": BuiltInTemplate(_CHATML, ("<|im_end|>",)),
        "gemma": BuiltInTemplate(_GEMMA, ("<end_of_turn>",)),
        "llama2": BuiltInTemplate(_LLAMA2, ("[INST]",), is_spaced=True),
        "llama3": BuiltInTemplate(_LLAMA3, ("<|eot_id|>",)),
        "mistral": BuiltInTemplate(_MISTRAL, ("[INST]",), is_spaced=True),
        "phi3": BuiltInTemplate(_PHI3, ("<|end|>",)),
        PLAIN: BuiltInTemplate(_PLAIN, ("\nUser:",), is_spaced=True),
    }
)

PLAIN_HINT = (
    "plain text, in lines of User: and Assistant:; --chat-template takes one that the model knows ("
    + listed([name for name in BUILT_IN_TEMPLATES if name != PLAIN], "or")
    + ")"
)
"""What is said of a model that has no template and is asked in plain text."""


# The chat template that a person chose: one of the built-in ones, or that of a file.

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
