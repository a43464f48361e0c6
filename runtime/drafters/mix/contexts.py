"""Compute the contexts of a place in a text, each as a key; compiled.

The contexts consist of (t1 is the last token, t2 the one before it, and so on): the last 6, 4, 3 and 2
tokens; the last two tokens without case and space; (t1, t3); (the first token of the previous line, the
column, t1); (the sentence's first token, t1); the last two long words; (the request's opening, t1); (the two
latest followers of t1 in this text, t1); t1; t1 without case and space; (the place in the answer, t1 or the
request's opening); t2; the shapes of the last six tokens. They are numbered in this order, and candidates are
taken from the first contexts first.
"""

from anespec.runtime.drafters.compiled import compiled_lean
from anespec.runtime.drafters.mix.layout import CONTEXTS, ORDERS, Longs, Words
from anespec.runtime.drafters.mix.nodes import FOLLOWED_BEFORE, FOLLOWED_LAST, find_word
from anespec.runtime.drafters.mix.state import (
    ANSWER_PLACE,
    COLUMN,
    KEYS,
    LENGTH,
    LINE_BEFORE,
    LONG_BEFORE,
    LONG_LAST,
    OPENING,
    SENTENCE_FIRST,
    SENTENCE_PLACE,
    SHAPES,
    folded_of,
)

ORDER_OF = (6, 4, 3, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0)
"""The number of last tokens in a context, for contexts that consist only of these."""

SEED = 0x5BD1E995
MAX_COLUMN = 6
MAX_PLACE = 40
OPENING_PLACES = 8
"""The place of an answer up to which the request's opening predicts more than the last token does."""

assert len(ORDER_OF) == CONTEXTS and max(ORDER_OF) < ORDERS


@compiled_lean("int64(int64, int64)")
def mixed(seed: int, value: int) -> int:
    """Return the hash of `value` combined with `seed`, which is a hash or SEED."""
    product = (seed ^ value) * -7046029254386353131  # 2^64 / golden ratio, odd, as a signed number
    return product ^ product >> 29 & 0x7FFFFFFFF


@compiled_lean("int64(int64, int64, int64, int64)")
def key_of(kind: int, first: int, second: int, third: int) -> int:
    """Return the key of a context of these parts: an odd number of 32 bits."""
    whole = mixed(mixed(mixed(mixed(mixed(SEED, kind), first), second), third), SEED)
    return (whole >> 24 & 0xFFFFFFFF) | 1


@compiled_lean("int64(int32[::1], int64)")
def token_at(text: Words, place: int) -> int:
    """Return the token at a place, or -1 for a place before the text."""
    return text[place] if place >= 0 else -1


@compiled_lean("void(int32[::1], int64[::1], int32[:,::1], int32[:,::1])")
def write_keys(text: Words, state: Longs, words: Words, traits: Words) -> None:
    """Write the keys of the contexts at the end of the text to the state."""
    length = state[LENGTH]
    t1 = token_at(text, length - 1)
    t2 = token_at(text, length - 2)
    t3 = token_at(text, length - 3)
    two = mixed(mixed(SEED, t1), t2)
    three = mixed(two, t3)
    four = mixed(three, token_at(text, length - 4))
    six = mixed(mixed(four, token_at(text, length - 5)), token_at(text, length - 6))
    f1 = folded_of(traits, t1)
    row = find_word(words, t1)
    in_sentence = state[SENTENCE_FIRST] if state[SENTENCE_PLACE] > 0 else -1
    place = min(state[ANSWER_PLACE], MAX_PLACE)
    state[KEYS] = key_of(0, six, 0, 0)
    state[KEYS + 1] = key_of(1, four, 0, 0)
    state[KEYS + 2] = key_of(2, three, 0, 0)
    state[KEYS + 3] = key_of(3, two, 0, 0)
    state[KEYS + 4] = key_of(4, f1, folded_of(traits, t2), 0)
    state[KEYS + 5] = key_of(5, t1, t3, 0)
    state[KEYS + 6] = key_of(6, state[LINE_BEFORE], min(state[COLUMN], MAX_COLUMN), t1)
    state[KEYS + 7] = key_of(7, in_sentence, t1, 0)
    state[KEYS + 8] = key_of(8, state[LONG_LAST], state[LONG_BEFORE], 0)
    state[KEYS + 9] = key_of(9, state[OPENING], t1, 0)
    state[KEYS + 10] = key_of(10, words[row, FOLLOWED_LAST], words[row, FOLLOWED_BEFORE], t1)
    state[KEYS + 11] = key_of(11, t1, 0, 0)
    state[KEYS + 12] = key_of(12, f1, 0, 0)
    state[KEYS + 13] = key_of(13, place, t1 if place > OPENING_PLACES else state[OPENING], 0)
    state[KEYS + 14] = key_of(14, t2, 0, 0)
    state[KEYS + 15] = key_of(15, state[SHAPES], 0, 0)
