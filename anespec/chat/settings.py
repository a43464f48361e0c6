"""The commands that change sampling options during a conversation."""

from collections.abc import Iterator
from typing import Any

from anespec.manifests.errors import RequestError
from anespec.manifests.formatting import listed, quoted
from anespec.manifests.options import type_of
from anespec.runtime.options import GenerationOptions

UNLIMITED = "none"

FIXED = frozenset({"choices", "logprobs"})
"""Options without a meaning in a conversation."""


def setting_names() -> tuple[str, ...]:
    """Options that can be set: every option that is a number."""
    fields = GenerationOptions.model_fields.items()
    return tuple(name for name, field in fields if type_of(field) in (int, float) and name not in FIXED)


def shown(options: GenerationOptions) -> Iterator[tuple[str, str]]:
    """Every name that can be set, and its value."""
    for name in setting_names():
        value = getattr(options, name)
        yield name, UNLIMITED if value is None else str(value) if isinstance(value, int) else f"{value:g}"


def changed(options: GenerationOptions, name: str, text: str) -> GenerationOptions:
    """Options with one value read from text.

    Raises:
        RequestError: there is no such name, or the value is not in its range.
    """
    if name not in setting_names():
        raise RequestError(f"there is no {quoted(name)} to set; there are {listed(setting_names())}")
    kind, value = type_of(GenerationOptions.model_fields[name]), None
    if text != UNLIMITED:
        value = _number(kind, name, text)
    return options.with_changes(**{name: value})


def _number(kind: Any, name: str, text: str) -> float:
    try:
        number: float = kind(text)
    except (ValueError, OverflowError):
        raise RequestError(f"{quoted(text)} is no number for {name}") from None
    return number
