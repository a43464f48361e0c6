"""Choose the turns of a conversation that stay in its prompt once the context is nearly full."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from anespec.manifests.errors import PromptTooLongError
from anespec.runtime.text.chat_prompt import ChatPrompt

FULL, CUT = 0.75, 0.5
"""A prompt of more than the first share of the context loses turns until it has no more than the second: it
is not cut at every turn, since what the model has read is only reused up to the first change."""


@dataclass(frozen=True)
class Trimmed:
    """A prompt that leaves an answer room, and how many of the first turns it has no more."""

    prompt: ChatPrompt
    left_out: int


def trim(prompt_after: Callable[[int], ChatPrompt], turns: int, context: int, left_out: int = 0) -> Trimmed:
    """Return the prompt with as many of the last turns as leave room for an answer.

    `prompt_after` makes the one without so many of the first turns: `turns` stand before the question, of
    which `left_out` had no room before. The question alone may take the whole context.

    Raises:
        PromptTooLongError: `prompt_after` raises it for the question alone.
    """

    def fitting(first: int, share: float) -> ChatPrompt | None:
        is_alone = first == turns
        try:
            prompt = prompt_after(first)
        except PromptTooLongError:
            if is_alone:
                raise
            return None
        return prompt if is_alone or len(prompt.ids) <= share * context else None

    prompt = fitting(left_out, FULL)
    if prompt is None:
        # Each try takes as long as the conversation is, and that may have thousands of turns.
        others = range(left_out + 1, turns)
        left_out += 1 + bisect_left(others, True, key=lambda turn: fitting(turn, CUT) is not None)
        prompt = fitting(left_out, CUT)
    assert prompt is not None
    return Trimmed(prompt, left_out)
