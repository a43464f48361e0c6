"""The words table of one text: per token when it came last, how often, and what followed it; compiled."""

from anespec.runtime.drafters.compiled import compiled_lean
from anespec.runtime.drafters.mix.layout import Words

WORD, LAST_AT, TIMES, FOLLOWED_LAST, FOLLOWED_BEFORE = 0, 1, 2, 3, 4
WORD_COLUMNS = 8
"""Of a row: the token + 1, 0 for none; how long the text was when it had come last; how often it came; and
the two latest tokens that followed it, + 1. The rest is unused."""


@compiled_lean("int64(int32[:,::1], int64)")
def find_word(words: Words, token: int) -> int:
    """The row of a token, or the empty one where it belongs. At least half of the rows are empty."""
    row = token * 0x9E3779B1 >> 7 & len(words) - 1
    while words[row, WORD] != token + 1 and words[row, WORD] != 0:
        row = row + 1 & len(words) - 1
    return row


@compiled_lean("void(int32[:,::1], int64, int64, int64)")
def note_word(words: Words, before: int, token: int, at: int) -> None:
    """Note that `token` came at place `at`, behind the token `before`, -1 for none."""
    row = find_word(words, token)
    words[row, WORD] = token + 1
    words[row, LAST_AT] = at
    words[row, TIMES] += 1
    if before >= 0:
        row = find_word(words, before)
        words[row, WORD] = before + 1
        words[row, FOLLOWED_BEFORE] = words[row, FOLLOWED_LAST]
        words[row, FOLLOWED_LAST] = token + 1


def word_rows(tokens: int) -> int:
    """Rows of a words table for a text of so many tokens: a power of two, twice as many at least."""
    return 1 << max(6, int(2 * tokens - 1).bit_length())
