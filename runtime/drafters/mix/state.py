"""The state of one text: numbers in one flat array, so that a chain can continue on a copy; compiled."""

from anespec.runtime.drafters.compiled import compiled_lean
from anespec.runtime.drafters.mix.layout import CONTEXTS, Longs, Words

LENGTH = 0
LINE_FIRST, LINE_BEFORE, COLUMN = 1, 2, 3
SENTENCE_FIRST, SENTENCE_PLACE = 4, 5
ANSWER_PLACE = 6
LONG_LAST, LONG_BEFORE = 7, 8
OPENING = 9
SHAPES = 10
"""The text's length; the first token of this line and of the one before, and how many this line has; the
first token of this sentence, and how many it has; how many the answer has, -1 in the prompt; the last two
long words; a hash of how the request opens; the shapes of the last six tokens, SHAPE_BITS each."""

AT, RUN, MISSES, OLD_AT, OLD_LEFT = 16, 17, 18, 19, 20
"""The copy pointer: where it copies from (-1 nowhere), how long it was right, its last eight misses as bits,
and the place that it left at a miss, for so many tokens more."""

KEYS = 24
STATE = KEYS + CONTEXTS
"""The keys of the contexts behind the text come last; STATE numbers in all, a few of them unused."""

SHAPE_BITS = 4
SHAPE_MASK = 15
ENDS_LINE, ENDS_SENTENCE, IS_LONG = 1 << 4, 1 << 5, 1 << 6
"""The flags of a token's trait, in addition to its shape."""
LAST_SHAPES = (1 << 6 * SHAPE_BITS) - 1


@compiled_lean("int64(int32[:,::1], int64)")
def trait_of(traits: Words, token: int) -> int:
    """A token's shape and what it ends; 0 for one beyond the vocabulary's texts."""
    return traits[token, 0] if 0 <= token < len(traits) else 0


@compiled_lean("int64(int32[:,::1], int64)")
def folded_of(traits: Words, token: int) -> int:
    """The token that represents all tokens that differ only in case and outer space."""
    return traits[token, 1] if 0 <= token < len(traits) else token


@compiled_lean("void(int64[::1], int64, int32[:,::1])")
def step_state(state: Longs, token: int, traits: Words) -> None:
    """Let the text go on with a token: lines, sentences, long words, shapes. The length is the caller's."""
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
