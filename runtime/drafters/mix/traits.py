"""Compute the features of the texts of a vocabulary's tokens, as an array for compiled functions."""

from functools import lru_cache

import numpy as np

from anespec.runtime.drafters.mix.layout import Words
from anespec.runtime.drafters.mix.state import ENDS_LINE, ENDS_SENTENCE, IS_LONG
from anespec.runtime.text.tokenizer import Tokenizer

UNKNOWN, SPACED, SPACED_CAPITAL, JOINED, JOINED_CAPITAL, CAPITALS, DIGITS, LINES = range(8)
SPACES, STOP, PAUSE, OPENS, CLOSES, SIGNS, FOREIGN, SPECIAL = range(8, 16)
"""The shapes of tokens."""

MIN_LONG_LETTERS = 4
"""The least letters of a long word. Long words more likely say what a text is about; short ones only connect
them."""


def no_traits() -> Words:
    """Return the traits of a vocabulary without texts: all tokens have one shape, and none are folded."""
    return np.zeros((0, 2), np.int32)


@lru_cache(maxsize=2)
def traits_of(tokenizer: Tokenizer) -> Words:
    """Return the traits of a vocabulary's tokens, [vocabulary, 2].

    The first column has a token's shape and flags (see state.py). The second has the first token whose text
    is the same without case and outer space.
    """
    size = tokenizer.vocabulary_size
    traits = np.zeros((size, 2), np.int32)
    folded: dict[str, int] = {}
    for token in range(size):
        text = tokenizer.token_bytes(token).decode(errors="replace")
        word = text.strip().lower()
        traits[token, 0] = shape_of(text) | ends_of(text, word) if text else SPECIAL
        traits[token, 1] = folded.setdefault(word, token) if word else token
    return traits


def ends_of(text: str, word: str) -> int:
    """Return the flags of a token: whether it ends a line or a sentence, and whether it is a long word."""
    if "\n" in text:
        return ENDS_LINE | ENDS_SENTENCE
    ends = ENDS_SENTENCE if word and word[-1] in ".!?:" else 0
    return ends | (IS_LONG if len(word) >= MIN_LONG_LETTERS and word.isalpha() else 0)


def shape_of(text: str) -> int:
    """Return the shape of a token with this text, which is not empty."""
    word = text.strip()
    if "\n" in text:
        return LINES
    if not word:
        return SPACES
    if word.isdigit():
        return DIGITS
    if not word.isascii():
        return FOREIGN
    if word[0].isalpha():
        return _word_shape(word, text[0] == " ")
    for ends, shape in ((".!?", STOP), (",;:", PAUSE), ("([{<`", OPENS), (")]}>\"'", CLOSES)):
        if word[-1] in ends:
            return shape
    return SIGNS


def _word_shape(word: str, spaced: bool) -> int:
    if len(word) > 1 and word.isupper():
        return CAPITALS
    if word[0].isupper():
        return SPACED_CAPITAL if spaced else JOINED_CAPITAL
    return SPACED if spaced else JOINED
