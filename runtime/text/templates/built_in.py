"""Define well-known chat templates by name, for models that have none, or a wrong one.

Each follows the template of the family's first published models. None writes the BOS token at its beginning,
since the vocabulary determines whether a model needs it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from anespec.system.formatting import listed

_SYSTEM_FIRST = (
    "{% if messages[0].role == 'system' %}"
    "{% set system = messages[0].content | trim %}{% set messages = messages[1:] %}"
    "{% endif %}"
)
"""Take a system message out of the messages, for families without a system turn; else `system` is
undefined."""

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
    """A chat template, and the texts that end an answer if they are not tokens of the vocabulary.

    With `is_spaced` the template writes a space before each earlier answer, but not before the next one.
    """

    text: str
    ends: tuple[str, ...] = ()
    is_spaced: bool = False


PLAIN = "plain"
"""The template for models that were trained without one: lines of `User:` and `Assistant:`."""

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
"""The note for a model that has no template and is used with plain text."""
