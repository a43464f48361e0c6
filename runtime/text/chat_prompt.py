"""A conversation as the tokens that a model continues."""

from dataclasses import dataclass

TAIL = 16
"""Tokens of the prompt's end that are looked at for what a template has opened there."""


@dataclass(frozen=True)
class ChatPrompt:
    """What a conversation becomes in the model's template: its tokens, and the text of the last few.

    An answer ends before the texts `ends`, too.
    """

    ids: tuple[int, ...]
    tail: str
    ends: tuple[str, ...] = ()
