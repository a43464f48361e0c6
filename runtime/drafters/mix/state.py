"""Hold the state of one text in one flat array of numbers, so that a chain can use a copy; compiled."""

from anespec.runtime.drafters.compiled import compiled_lean
from anespec.runtime.drafters.mix.layout import CONTEXTS, Longs, Words

LENGTH = 0
LINE_FIRST, LINE_BEFORE, COLUMN = 1, 2, 3
SENTENCE_FIRST, SENTENCE_PLACE = 4, 5
ANSWER_PLACE = 6
LONG_LAST, LONG_BEFORE = 7, 8
OPENING = 9
SHAPES = 10
"""The places of numbers in the state, in the order above: the text's length; the first token of this line,
the first token of the previous line, and the tokens of this line; the first token of this sentence, and its
tokens; the tokens of the answer, -1 in the prompt; the last two long words; a hash of the request's opening;
the shapes of the last six tokens, SHAPE_BITS each."""

AT, RUN, MISSES, OLD_AT, OLD_LEFT = 16, 17, 18, 19, 20
"""The copy pointer: the place that it copies from (-1 for none), the number of right tokens in a row, its
last eight misses as bits, the place that it left at a miss, and for how many more tokens this place is
stored."""

KEYS = 24
STATE = KEYS + CONTEXTS
"""The keys of the contexts at the text's end come last. The state has STATE numbers; a few are unused."""

SHAPE_BITS = 4
SHAPE_MASK = 15
ENDS_LINE, ENDS_SENTENCE, IS_LONG = 1 << 4, 1 << 5, 1 << 6
"""The flags of a token's trait, in addition to its shape."""
LAST_SHAPES = (1 << 6 * SHAPE_BITS) - 1


@compiled_lean("int64(int32[:,::1], int64)")
def trait_of(traits: Words, token: int) -> int:
    """Return a token's shape and flags; 0 for a token without traits."""
    return traits[token, 0] if 0 <= token < len(traits) else 0


@compiled_lean("int64(int32[:,::1], int64)")
def folded_of(traits: Words, token: int) -> int:
    """Return the token that represents all tokens that differ only in case and outer space."""
    return traits[token, 1] if 0 <= token < len(traits) else token


@compiled_lean("void(int64[::1], int64, int32[:,::1])")
def step_state(state: Longs, token: int, traits: Words) -> None:
    """Update lines, sentences, long words and shapes with a new token; the caller updates the length."""
    trait = trait_of(traits, token)
    state[SHAPES] = (state[SHAPES] << SHAPE_BITS | trait & SHAPE_MASK) & LAST_SHAPES
    if state[COLUMN] == 0:
        state[LINE_FIRST] = token
    state[COLUMN] += 1
    if state[SENTENCE_PLACE] == 0:
        state[SENTENCE_FIRST] = token
    state[SENTENCE_PLACE] += 1
    if trait & ENDS_LINE:
        state[LINE_BEFORE] = state[LINE_FIRST]
        state[COLUMN] = 0
    if trait & ENDS_SENTENCE:
        state[SENTENCE_PLACE] = 0
    if trait & IS_LONG:
        state[LONG_BEFORE] = state[LONG_LAST]
        state[LONG_LAST] = folded_of(traits, token)
    if state[ANSWER_PLACE] >= 0:
        state[ANSWER_PLACE] += 1
