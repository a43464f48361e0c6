"""Collect the candidates for the next token, and their inputs to the mixing; compiled."""

import numpy as np

from anespec.runtime.drafters.compiled import compiled_lean, takes
from anespec.runtime.drafters.datastore.kernels import datastore_guess
from anespec.runtime.drafters.jacobi import jacobi_guess
from anespec.runtime.drafters.mix.contexts import ORDER_OF, SEED, mixed
from anespec.runtime.drafters.mix.layout import (
    BIAS_ROOM,
    BIASES,
    BY_LOCAL_ORDER,
    BY_MEMORY_ORDER,
    BY_POINTER,
    BY_SHAPE,
    CANDIDATES,
    CONTEXTS,
    DATASTORE,
    IMAGE,
    JACOBI,
    LOGIT,
    NO_POINTER,
    POINTER,
    POINTER_RATES,
    PRIOR,
    PRIOR_RATES,
    RECYCLE,
    TABLES_MATCHED,
    TEXT,
    TRAITS,
    Image,
    Longs,
    Numbers,
    Octets,
    Text,
    Words,
)
from anespec.runtime.drafters.mix.nodes import (
    COUNTS,
    FIRST_FOLLOWER,
    FOLLOWERS,
    LAST_AT,
    TIMES,
    VISITS,
    WORD,
    find_node,
    find_word,
)
from anespec.runtime.drafters.mix.others import OTHERS, Others
from anespec.runtime.drafters.mix.pointer import pointer_rate, pointer_step
from anespec.runtime.drafters.mix.scratch import (
    ACTIVE,
    ACTIVE_COUNT,
    CHOSEN_LOCAL,
    CHOSEN_MEMORY,
    CHOSEN_POINTER,
    CHOSEN_SETS,
    CHOSEN_SHAPE,
    ENTRY_COUNT,
    PRIORS,
    SCRATCH,
    SLOT_COUNT,
    SLOTS,
    Scratch,
)
from anespec.runtime.drafters.mix.state import (
    AT,
    KEYS,
    LENGTH,
    SHAPE_BITS,
    SHAPE_MASK,
    SHAPES,
    folded_of,
    trait_of,
)
from anespec.runtime.drafters.recycle import recycle_guess

# A candidate has a bias for each of: (the shape of the last token, its shape); (its age and count here, its
# shape); the token; (the last two shapes, the token); (the last three shapes, its shape); (the last shape,
# the token without case and space). The biases are in one hash table without keys, so some share a number.

BIAS_STEP = np.float32(0.02)
_TWO_SHAPES = (1 << 2 * SHAPE_BITS) - 1
_THREE_SHAPES = (1 << 3 * SHAPE_BITS) - 1


@compiled_lean("int64(int64, int64)")
def _bias_place(first: int, second: int) -> int:
    return mixed(mixed(mixed(SEED, first), second), SEED) >> 20 & BIAS_ROOM - 1


@compiled_lean("void(int64, int64, int64, int64[::1], int32[:,::1], int32[:,::1])")
def place_biases(candidate: int, token: int, prior: int, state: Longs, traits: Words, places: Words) -> None:
    """Write the indices of a candidate's biases; `prior` gives its age and frequency."""
    shapes = state[SHAPES]
    shape = trait_of(traits, token) & SHAPE_MASK
    last = shapes & SHAPE_MASK
    places[candidate, 0] = last << SHAPE_BITS | shape
    places[candidate, 1] = (1 << 2 * SHAPE_BITS) + (prior << SHAPE_BITS | shape)
    places[candidate, 2] = _bias_place(token, -1)
    places[candidate, 3] = _bias_place(token, shapes & _TWO_SHAPES)
    places[candidate, 4] = _bias_place(-2 - shape, shapes & _THREE_SHAPES)
    places[candidate, 5] = _bias_place(folded_of(traits, token), -2 - last)


@compiled_lean("float32(int64, int32[:,::1], float32[::1])")
def bias_of(candidate: int, places: Words, biases: Numbers) -> np.float32:
    """Return the sum of a candidate's biases."""
    total = np.float32(0)
    for kind in range(BIASES):
        total += biases[places[candidate, kind]]
    return total


@compiled_lean("void(int64, float32, int32[:,::1], float32[::1])")
def move_biases(candidate: int, error: np.float32, places: Words, biases: Numbers) -> None:
    """Change a candidate's biases in proportion to the error of its share."""
    for kind in range(BIASES):
        biases[places[candidate, kind]] += BIAS_STEP * error


LOG_HALF = np.log(np.maximum(np.arange(256), 1) - 0.5).astype(np.float32)
"""ln(c - 0.5) for counts c from 1 to 255."""

LOG_ONE = np.log(np.arange(256) + 1.0).astype(np.float32)
"""ln(n + 1) for counts n from 0 to 255."""


MATCHED_MEMORY, MATCHED_LOCAL = 1, 2
"""Bits that say which tables have a context of two or more tokens: the memory's, this text's."""

CONTEXT_OFFSET = np.float32(6)
POINTER_OFFSET = np.float32(4)
PRIOR_OFFSET = np.float32(3)
"""Added to the logarithms of odds that are inputs. An absent input is 0, and a present one should not be far
below that."""

MIN_CHANCE, MAX_CHANCE = 1e-3, 0.999
"""The limits of the probability of another source's candidate, so that its odds are in the range of those of
contexts."""

_AGES, _TIMES = 16, 8
"""The number of bins of a candidate's age (powers of two) and of its count: see PRIOR_RATES."""


@compiled_lean("int64(int64, int64, int32[::1], int64[::1])")
def _place_of(token: int, count: int, found: Words, marks: Longs) -> int:
    """Return a token's place among the candidates, and add a new one at place `count` if there is room."""
    slot = token * 40503 >> 3 & SLOT_COUNT - 1
    while marks[SLOTS + slot] >= 0:
        if found[marks[SLOTS + slot]] == token:
            known: int = marks[SLOTS + slot]
            return known
        slot = slot + 1 & SLOT_COUNT - 1
    if count < CANDIDATES:
        marks[SLOTS + slot] = count
        found[count] = token
    return count


@compiled_lean(takes("int64, int64, float32", SCRATCH))
def _enter(candidate: int, number: int, value: np.float32, scratch: Scratch) -> None:
    """Add an entry: the candidate's input `number` has this value."""
    entry = scratch.marks[ENTRY_COUNT]
    scratch.entries[entry, 0] = candidate
    scratch.entries[entry, 1] = number
    scratch.values[entry] = value
    scratch.marks[ENTRY_COUNT] = entry + 1


@compiled_lean("void(int64, int64[::1])")
def _activate(number: int, marks: Longs) -> None:
    """Record that some candidate has this input."""
    marks[ACTIVE + marks[ACTIVE_COUNT]] = number
    marks[ACTIVE_COUNT] += 1


@compiled_lean(takes("int32[:,::1], uint8[:,::1], int64, int64, int64", SCRATCH, returns="int64"))
def _take_context(nodes: Words, octets: Octets, row: int, number: int, count: int, scratch: Scratch) -> int:
    """Add the followers of a node as candidates with input `number`; return the number of candidates."""
    visits = np.int64(octets[row, VISITS])
    for place in range(FOLLOWERS):
        times = np.int64(octets[row, COUNTS + place])
        if times == 0:
            break
        candidate = _place_of(nodes[row, FIRST_FOLLOWER + place], count, scratch.found, scratch.marks)
        if candidate < CANDIDATES:
            count = max(count, candidate + 1)
            odds = CONTEXT_OFFSET + LOG_HALF[times] - LOG_ONE[max(visits - times, 0)]
            _enter(candidate, number, odds, scratch)
    _activate(number, scratch.marks)
    return count


@compiled_lean(takes("int64, int64, int64", SCRATCH, returns="int64"))
def _take_source(number: int, several: int, count: int, scratch: Scratch) -> int:
    """Add another source's candidates, `others` and `chances`, as input `number`; return the number of
    candidates."""
    for place in range(several):
        candidate = _place_of(scratch.others[place], count, scratch.found, scratch.marks)
        if candidate < CANDIDATES:
            count = max(count, candidate + 1)
            chance = min(max(scratch.chances[place], MIN_CHANCE), MAX_CHANCE)
            odds = np.float32(np.log(chance / (1.0 - chance))) + CONTEXT_OFFSET
            _enter(candidate, number, odds, scratch)
    if several:
        _activate(number, scratch.marks)
    return count


@compiled_lean(takes(TEXT, OTHERS, "int64", SCRATCH, returns="int64"))
def _take_others(text: Text, others: Others, count: int, scratch: Scratch) -> int:
    """Add the candidates of all other sources; return the number of candidates.

    A new source needs an input (layout.py), arrays (others.py) and its lines here.
    """
    tokens, length, found, chances = text.tokens, text.state[LENGTH], scratch.others, scratch.chances
    if len(others.recycled):
        several, _ = recycle_guess(
            others.recycled, others.recycled_pairs, others.recycled_rates, tokens, length, found, chances
        )
        count = _take_source(RECYCLE, several, count, scratch)
    if len(others.pool):
        several, _ = jacobi_guess(
            others.window, others.pool, others.pool_rates, tokens, length, found, chances
        )
        count = _take_source(JACOBI, several, count, scratch)
    if len(others.order):
        several, _ = datastore_guess(
            others.starts, others.corpus, others.order, tokens, length, found, chances
        )
        count = _take_source(DATASTORE, several, count, scratch)
    return count


@compiled_lean("int64(int64, int64)")
def _prior_of(age: int, times: int) -> int:
    """Return the rate of candidates that came `times` times in this text, the last time `age` tokens ago."""
    if times == 0:
        return PRIOR_RATES
    step = 0
    while age > 1 and step < _AGES - 1:
        age >>= 1
        step += 1
    return PRIOR_RATES + 1 + step * _TIMES + min(times, _TIMES - 1)


@compiled_lean(takes(TEXT, IMAGE, OTHERS, TRAITS, SCRATCH, returns="int64"))
def gather(text: Text, image: Image, others: Others, traits: Words, scratch: Scratch) -> int:
    """Write the candidates for the next position, their inputs and the indices of their biases to `scratch`.

    Return the number of candidates.
    """
    state, marks, found = text.state, scratch.marks, scratch.found
    length = state[LENGTH]
    for slot in range(SLOT_COUNT):
        marks[SLOTS + slot] = -1
    marks[ACTIVE_COUNT] = 0
    marks[ENTRY_COUNT] = 0
    count = 0
    marks[CHOSEN_SETS] = 0
    marks[CHOSEN_POINTER] = NO_POINTER
    if state[AT] >= 0:
        count = 1 + _place_of(text.tokens[state[AT]], 0, found, marks)
        _enter(0, POINTER, image.rates[POINTER_RATES + pointer_rate(state), LOGIT] + POINTER_OFFSET, scratch)
        _activate(POINTER, marks)
        marks[CHOSEN_POINTER] = BY_POINTER + pointer_step(state)
    if len(others.recycled) or len(others.pool) or len(others.order):
        count = _take_others(text, others, count, scratch)
    local_order = 0
    memory_order = 0
    for context in range(CONTEXTS):
        row = find_node(text.nodes, state[KEYS + context])
        if row >= 0:
            local_order = max(local_order, ORDER_OF[context])
            count = _take_context(text.nodes, text.octets, row, context, count, scratch)
        row = find_node(image.nodes, state[KEYS + context])
        if row >= 0:
            memory_order = max(memory_order, ORDER_OF[context])
            count = _take_context(image.nodes, image.octets, row, CONTEXTS + context, count, scratch)
    for candidate in range(count):
        row = find_word(text.words, found[candidate])
        seen = text.words[row, WORD] != 0
        prior = _prior_of(length - text.words[row, LAST_AT], text.words[row, TIMES] if seen else 0)
        marks[PRIORS + candidate] = prior
        _enter(candidate, PRIOR, image.rates[prior, LOGIT] + PRIOR_OFFSET, scratch)
        place_biases(candidate, found[candidate], prior - PRIOR_RATES, state, traits, scratch.places)
    _activate(PRIOR, marks)
    matched = (MATCHED_LOCAL if local_order >= 2 else 0) + (MATCHED_MEMORY if memory_order >= 2 else 0)
    marks[CHOSEN_LOCAL] = BY_LOCAL_ORDER + local_order
    marks[CHOSEN_MEMORY] = BY_MEMORY_ORDER + memory_order
    marks[CHOSEN_SHAPE] = BY_SHAPE + (state[SHAPES] & SHAPE_MASK) * TABLES_MATCHED + matched
    return count
