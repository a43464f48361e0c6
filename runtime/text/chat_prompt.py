"""A conversation as the tokens that a model continues."""

from dataclasses import dataclass

TAIL = 16
"""Tokens of the prompt's end that are looked at for what a template has opened there."""


@dataclass(frozen=True)
class ChatPrompt:
    """What a conversation becomes in the model's template: its tokens, and the text of the last few.

    An answer ends before the texts `ends`, too. `is_spaced`: a space that it begins with is the template's,
    and none of its text.
    """

    ids: tuple[int, ...]
    tail: str
    ends: tuple[str, ...] = ()
    is_spaced: bool = False
