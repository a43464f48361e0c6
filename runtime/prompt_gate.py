"""The classic rule of when to guess at all: where the prompt itself repeats."""

from collections.abc import Sequence

GRAM = 3


def repetition(prompt: Sequence[int]) -> float:
    """The share of a prompt's 3-grams that came before in it; 0 for a prompt without two of them.

    Prompt lookup pays where text repeats, and a prompt that does not rarely gets an answer that does.
    """
    count = len(prompt) - GRAM + 1
    if count < 2:
        return 0.0
    return 1 - len({tuple(prompt[i : i + GRAM]) for i in range(count)}) / count
