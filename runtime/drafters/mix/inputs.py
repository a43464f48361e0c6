"""What is known of each token that may come next: candidates, and their inputs to the mixing; compiled."""

import numpy as np

from anespec.runtime.drafters.candidates import MOST_CANDIDATES, Chances, Rates
from anespec.runtime.drafters.compiled import compiled_lean
from anespec.runtime.drafters.datastore.kernels import READ_ONLY, datastore_guess
from anespec.runtime.drafters.datastore.stored import Order, Starts, Text
from anespec.runtime.drafters.jacobi import Pool, Window, jacobi_guess
from anespec.runtime.drafters.mix.biases import place_biases
from anespec.runtime.drafters.mix.contexts import ORDER_OF
from anespec.runtime.drafters.mix.layout import (
    BY_LOCAL_ORDER,
    BY_MEMORY_ORDER,
    BY_POINTER,
    BY_SHAPE,
    CANDIDATES,
    CHOSEN,
    CONTEXTS,
    DATASTORE,
    FIRST_OTHER,
    INPUTS,
    JACOBI,
    LOGIT,
    NO_POINTER,
    POINTER,
    POINTER_RATES,
    PRIOR,
    PRIOR_RATES,
    RECYCLE,
    Longs,
    Numbers,
    Octets,
    Words,
)
from anespec.runtime.drafters.mix.logs import LOG_HALF, LOG_ONE
from anespec.runtime.drafters.mix.nodes import COUNTS, FIRST_FOLLOWER, FOLLOWERS, VISITS, find_node
from anespec.runtime.drafters.mix.pointer import pointer_rate, pointer_step
from anespec.runtime.drafters.mix.state import AT, KEYS, LENGTH, SHAPE_MASK, SHAPES
from anespec.runtime.drafters.mix.words import LAST_AT, TIMES, WORD, find_word
from anespec.runtime.drafters.recycle import Table, recycle_guess

CHOSEN_SETS = 0
PRIORS = CHOSEN_SETS + CHOSEN
ACTIVE_COUNT = PRIORS + CANDIDATES
ACTIVE = ACTIVE_COUNT + 1
SLOTS = ACTIVE + INPUTS
SLOT_COUNT = 128
ENTRY_COUNT = SLOTS + SLOT_COUNT
SPEAKER = ENTRY_COUNT + 1
BEST = SPEAKER + 1
ORDER = BEST + 1
MARKS = ORDER + 1
"""Marks, an array of integers: the chosen weight sets; which prior each candidate has; how many inputs any
candidate has, and which; where a token stands among the candidates; how many entries there are;
of a chain's first token which input spoke most for it, its place among the candidates, and how many tokens of
context stood in this text before."""

MOST_ENTRIES = 2 * CONTEXTS * FOLLOWERS + (INPUTS - FIRST_OTHER) * MOST_CANDIDATES + CANDIDATES + 1
"""An entry says that a candidate has an input, and a value beside it which; it has few of all."""

MATCHED_MEMORY, MATCHED_LOCAL = 1, 2

CONTEXT_OFFSET = np.float32(6)
POINTER_OFFSET = np.float32(4)
PRIOR_OFFSET = np.float32(3)
"""Added to what is a logarithm of odds, so that 0 may mean absent and nothing is far below it."""

_AGES = 16
_TIMES = 8


@compiled_lean("int64(int64, int64, int32[::1], int64[::1])")
def _place_of(token: int, count: int, found: Words, marks: Longs) -> int:
    """A token's place among the candidates, `count` where it would be a new one."""
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


@compiled_lean("void(int64, int64, float32, int64[::1], int32[:,::1], float32[::1])")
def _enter(
    candidate: int, number: int, value: np.float32, marks: Longs, entries: Words, values: Numbers
) -> None:
    """Give a candidate an input."""
    entry = marks[ENTRY_COUNT]
    entries[entry, 0] = candidate
    entries[entry, 1] = number
    values[entry] = value
    marks[ENTRY_COUNT] = entry + 1


@compiled_lean("void(int64, int64[::1])")
def _activate(number: int, marks: Longs) -> None:
    """Note that candidates have this input."""
    marks[ACTIVE + marks[ACTIVE_COUNT]] = number
    marks[ACTIVE_COUNT] += 1


@compiled_lean(
    "int64(int32[:,::1], uint8[:,::1], int64, int64, int64, int32[::1], int64[::1], int32[:,::1], "
    "float32[::1])"
)
def _take_context(
    nodes: Words,
    octets: Octets,
    row: int,
    number: int,
    count: int,
    found: Words,
    marks: Longs,
    entries: Words,
    values: Numbers,
) -> int:
    """Let the followers of a node speak as input `number`; how many candidates there are then."""
    visits = np.int64(octets[row, VISITS])
    for place in range(FOLLOWERS):
        times = np.int64(octets[row, COUNTS + place])
        if times == 0:
            break
        candidate = _place_of(nodes[row, FIRST_FOLLOWER + place], count, found, marks)
        if candidate < CANDIDATES:
            count = max(count, candidate + 1)
            odds = CONTEXT_OFFSET + LOG_HALF[times] - LOG_ONE[max(visits - times, 0)]
            _enter(candidate, number, odds, marks, entries, values)
    _activate(number, marks)
    return count


@compiled_lean(
    "int64(int64, int64, int32[::1], float64[::1], int64, int32[::1], int64[::1], int32[:,::1], float32[::1])"
)
def _take_others(
    number: int,
    several: int,
    tokens: Words,
    chances: Chances,
    count: int,
    found: Words,
    marks: Longs,
    entries: Words,
    values: Numbers,
) -> int:
    """Let another source's candidates speak as input `number`; how many candidates there are then."""
    for place in range(several):
        candidate = _place_of(tokens[place], count, found, marks)
        if candidate < CANDIDATES:
            count = max(count, candidate + 1)
            chance = min(max(chances[place], 1e-3), 0.999)
            odds = np.float32(np.log(chance / (1.0 - chance))) + CONTEXT_OFFSET
            _enter(candidate, number, odds, marks, entries, values)
    if several:
        _activate(number, marks)
    return count


@compiled_lean("int64(int64, int64)")
def _prior_of(age: int, times: int) -> int:
    """The rate of candidates that came so often here, the last time so many tokens ago."""
    if times == 0:
        return PRIOR_RATES
    step = 0
    while age > 1 and step < _AGES - 1:
        age >>= 1
        step += 1
    return PRIOR_RATES + 1 + step * _TIMES + min(times, _TIMES - 1)


GATHER = (
    "int32[::1], int64[::1], int32[:,::1], uint8[:,::1], int32[:,::1], int32[:,::1], uint8[:,::1], "
    "float32[:,::1], int32[:,::1], int32[:,::1], float64[:,::1], int32[::1], int32[:,:,::1], float64[:,::1], "
    + READ_ONLY
    + "int32[:,::1], int32[::1], int64[::1], int32[:,::1], float32[::1], int32[:,::1], "
    "int32[::1], float64[::1]"
)


@compiled_lean(f"int64({GATHER})")
def gather(
    text: Words,
    state: Longs,
    nodes: Words,
    octets: Octets,
    words: Words,
    memory_nodes: Words,
    memory_octets: Octets,
    rates: Numbers,
    recycled: Table,
    recycled_pairs: Table,
    recycled_rates: Rates,
    window: Window,
    pool: Pool,
    pool_rates: Rates,
    starts: Starts,
    corpus: Text,
    order: Order,
    traits: Words,
    found: Words,
    marks: Longs,
    entries: Words,
    values: Numbers,
    places: Words,
    others: Words,
    chances: Chances,
) -> int:
    """Write the candidates for the place behind the text, the entries of their inputs, and where their biases
    stand; how many there are."""
    length = state[LENGTH]
    for slot in range(SLOT_COUNT):
        marks[SLOTS + slot] = -1
    marks[ACTIVE_COUNT] = 0
    marks[ENTRY_COUNT] = 0
    count = 0
    marks[CHOSEN_SETS] = 0
    marks[CHOSEN_SETS + 3] = NO_POINTER
    if state[AT] >= 0:
        count = 1 + _place_of(text[state[AT]], 0, found, marks)
        odds = rates[POINTER_RATES + pointer_rate(state), LOGIT] + POINTER_OFFSET
        _enter(0, POINTER, odds, marks, entries, values)
        _activate(POINTER, marks)
        marks[CHOSEN_SETS + 3] = BY_POINTER + pointer_step(state)
    if len(recycled) or len(pool) or len(order):
        if len(recycled):
            several, _ = recycle_guess(
                recycled, recycled_pairs, recycled_rates, text, length, others, chances
            )
            count = _take_others(RECYCLE, several, others, chances, count, found, marks, entries, values)
        if len(pool):
            several, _ = jacobi_guess(window, pool, pool_rates, text, length, others, chances)
            count = _take_others(JACOBI, several, others, chances, count, found, marks, entries, values)
        if len(order):
            several, _ = datastore_guess(starts, corpus, order, text, length, others, chances)
            count = _take_others(DATASTORE, several, others, chances, count, found, marks, entries, values)
    local_order = 0
    memory_order = 0
    for context in range(CONTEXTS):
        row = find_node(nodes, state[KEYS + context])
        if row >= 0:
            local_order = max(local_order, ORDER_OF[context])
            count = _take_context(nodes, octets, row, context, count, found, marks, entries, values)
        row = find_node(memory_nodes, state[KEYS + context])
        if row >= 0:
            memory_order = max(memory_order, ORDER_OF[context])
            number = CONTEXTS + context
            count = _take_context(
                memory_nodes, memory_octets, row, number, count, found, marks, entries, values
            )
    for candidate in range(count):
        row = find_word(words, found[candidate])
        seen = words[row, WORD] != 0
        prior = _prior_of(length - words[row, LAST_AT], words[row, TIMES] if seen else 0)
        marks[PRIORS + candidate] = prior
        _enter(candidate, PRIOR, rates[prior, LOGIT] + PRIOR_OFFSET, marks, entries, values)
        place_biases(candidate, found[candidate], prior - PRIOR_RATES, state, traits, places)
    _activate(PRIOR, marks)
    matched = (MATCHED_LOCAL if local_order >= 2 else 0) + (MATCHED_MEMORY if memory_order >= 2 else 0)
    marks[CHOSEN_SETS + 1] = BY_LOCAL_ORDER + local_order
    marks[CHOSEN_SETS + 2] = BY_MEMORY_ORDER + memory_order
    marks[CHOSEN_SETS + 4] = BY_SHAPE + (state[SHAPES] & SHAPE_MASK) * 4 + matched
    return count
