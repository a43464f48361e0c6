"""The contexts of a place in a text, each as a key; compiled.

By what they hold, t1 being the last token: the last 6, 4, 3 and 2 tokens; the last two without case and
space; (t1, t3); (the first token of the line before, the column, t1); (the sentence's first token, t1);
(the last two long words); (how the request opens, t1); (the two latest followers of t1 here, t1); t1; t1
without case and space; (the place in the answer, t1 or how the request opens); t2; the shapes of the last
six tokens. Their numbers are their order: candidates are taken from the first ones first.
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
LAST_COLUMN = 6
LAST_PLACE = 40
EARLY = 8
"""Up to this place of an answer what the request opens with says more than the last token."""

assert len(ORDER_OF) == CONTEXTS and max(ORDER_OF) < ORDERS


@compiled_lean("int64(int64, int64)")
def mixed(seed: int, value: int) -> int:
    """A hash that goes on from `seed`, a hash itself or the same for all."""
    product = (seed ^ value) * -7046029254386353131  # 2^64 / golden ratio, odd, as a signed number
    return product ^ product >> 29 & 0x7FFFFFFFF


@compiled_lean("int64(int64, int64, int64, int64)")
def key_of(kind: int, first: int, second: int, third: int) -> int:
    """The key of a context of these parts: odd, of 32 bits."""
    whole = mixed(mixed(mixed(mixed(mixed(SEED, kind), first), second), third), SEED)
    return (whole >> 24 & 0xFFFFFFFF) | 1


@compiled_lean("int64(int32[::1], int64)")
def token_at(text: Words, place: int) -> int:
    """The token at a place, -1 before the text."""
    return text[place] if place >= 0 else -1


@compiled_lean("void(int32[::1], int64[::1], int32[:,::1], int32[:,::1])")
def write_keys(text: Words, state: Longs, words: Words, traits: Words) -> None:
    """Write the keys of the place behind the text to the state."""
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
    place = min(state[ANSWER_PLACE], LAST_PLACE)
    state[KEYS] = key_of(0, six, 0, 0)
    state[KEYS + 1] = key_of(1, four, 0, 0)
    state[KEYS + 2] = key_of(2, three, 0, 0)
    state[KEYS + 3] = key_of(3, two, 0, 0)
    state[KEYS + 4] = key_of(4, f1, folded_of(traits, t2), 0)
    state[KEYS + 5] = key_of(5, t1, t3, 0)
    state[KEYS + 6] = key_of(6, state[LINE_BEFORE], min(state[COLUMN], LAST_COLUMN), t1)
    state[KEYS + 7] = key_of(7, in_sentence, t1, 0)
    state[KEYS + 8] = key_of(8, state[LONG_LAST], state[LONG_BEFORE], 0)
    state[KEYS + 9] = key_of(9, state[OPENING], t1, 0)
    state[KEYS + 10] = key_of(10, words[row, FOLLOWED_LAST], words[row, FOLLOWED_BEFORE], t1)
    state[KEYS + 11] = key_of(11, t1, 0, 0)
    state[KEYS + 12] = key_of(12, f1, 0, 0)
    state[KEYS + 13] = key_of(13, place, t1 if place > EARLY else state[OPENING], 0)
    state[KEYS + 14] = key_of(14, t2, 0, 0)
    state[KEYS + 15] = key_of(15, state[SHAPES], 0, 0)
