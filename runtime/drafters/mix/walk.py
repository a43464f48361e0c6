"""Walks over a text: index it, propose what follows, learn what came, fold it into memory; compiled."""

from anespec.runtime.drafters.candidates import Chances, Rates
from anespec.runtime.drafters.compiled import compiled_lean
from anespec.runtime.drafters.datastore.stored import Order, Starts, Text
from anespec.runtime.drafters.jacobi import Pool, Window
from anespec.runtime.drafters.mix.contexts import mixed, write_keys
from anespec.runtime.drafters.mix.inputs import BEST, CHOSEN_SETS, GATHER, ORDER, PRIORS, SPEAKER, gather
from anespec.runtime.drafters.mix.layout import (
    BY_LOCAL_ORDER,
    BY_SHAPE,
    CONTEXTS,
    POINTER_RATES,
    RATE,
    TAKEN,
    Longs,
    Numbers,
    Octets,
    Words,
)
from anespec.runtime.drafters.mix.nodes import count_follower
from anespec.runtime.drafters.mix.pointer import aim_pointer, drop_pointer, pointer_rate, step_pointer
from anespec.runtime.drafters.mix.rates import POINTER_SPAN, PRIOR_SPAN, SURE_SPAN, move_rate, sure_row
from anespec.runtime.drafters.mix.scorer import loudest_input, score, teach
from anespec.runtime.drafters.mix.state import ANSWER_PLACE, AT, KEYS, LENGTH, OPENING, STATE, step_state
from anespec.runtime.drafters.mix.words import note_word
from anespec.runtime.drafters.recycle import Table

OPENING_TOKENS = 6
"""With so many tokens a request's opening tells what is asked."""


@compiled_lean("void(int64[::1], int32[::1], int64, int32[:,::1], int32[:,::1])")
def begin_text(state: Longs, opening: Words, count: int, words: Words, traits: Words) -> None:
    """Set a state to the beginning of a text, of a request that opens with these tokens."""
    for place in range(STATE):
        state[place] = 0
    state[ANSWER_PLACE] = -1
    value = 0
    for place in range(min(count, OPENING_TOKENS)):
        value = mixed(value, opening[place])
    state[OPENING] = value
    drop_pointer(state)
    write_keys(opening, state, words, traits)


@compiled_lean("void(int64[::1])")
def begin_answer(state: Longs) -> None:
    """What comes from here on is the answer."""
    state[ANSWER_PLACE] = 0
    drop_pointer(state)


@compiled_lean(
    "void(int32[::1], int64, int64[::1], int32[:,::1], uint8[:,::1], int32[:,::1], int32[:,::1], "
    "int32[:,::1])"
)
def index_text(
    text: Words,
    end: int,
    state: Longs,
    nodes: Words,
    octets: Octets,
    words: Words,
    heads: Words,
    traits: Words,
) -> None:
    """Let the text go on to `end`, and learn what followed what."""
    while state[LENGTH] < end:
        at = state[LENGTH]
        token = text[at]
        for context in range(CONTEXTS):
            count_follower(nodes, octets, state[KEYS + context], token)
        note_word(words, text[at - 1] if at > 0 else -1, token, at + 1)
        state[LENGTH] = at + 1
        step_state(state, token, traits)
        step_pointer(state, text)
        aim_pointer(state, text, heads)
        write_keys(text, state, words, traits)


@compiled_lean(
    "void(int32[::1], int64, int64, int64, int64, int64[::1], int32[:,::1], int32[:,::1], uint8[:,::1], "
    "int64[::1], int32[:,::1])"
)
def fold_text(
    text: Words,
    first: int,
    end: int,
    begin: int,
    answer: int,
    state: Longs,
    words: Words,
    nodes: Words,
    octets: Octets,
    header: Longs,
    traits: Words,
) -> None:
    """Learn what followed what, of tokens from `first` to `end` those from `begin` on; calls go on from one
    another. `answer` is where the answer begins."""
    if first == 0:
        begin_text(state, text, len(text), words, traits)
    for at in range(first, end):
        token = text[at]
        if at == answer:
            state[ANSWER_PLACE] = 0
            write_keys(text, state, words, traits)
        if at >= begin:
            for context in range(CONTEXTS):
                header[TAKEN] += count_follower(nodes, octets, state[KEYS + context], token)
        note_word(words, text[at - 1] if at > 0 else -1, token, at + 1)
        state[LENGTH] = at + 1
        step_state(state, token, traits)
        write_keys(text, state, words, traits)


@compiled_lean(
    f"int64(int64, int64[::1], float32[:,::1], float32[::1], {GATHER}, float32[:,::1], "
    "float32[:,::1], float32[::1], float64[::1])"
)
def propose_chain(
    budget: int,
    here: Longs,
    weights: Numbers,
    biases: Numbers,
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
    slopes: Numbers,
    units: Numbers,
    shares: Numbers,
    claims: Chances,
) -> int:
    """Write up to `budget` tokens behind the text `here`, and the chance of each; how many.

    `state` is overwritten with where the chain stands.
    """
    for place in range(STATE):
        state[place] = here[place]
    for step in range(budget):
        count = gather(
            text, state, nodes, octets, words, memory_nodes, memory_octets, rates, recycled, recycled_pairs,
            recycled_rates, window, pool, pool_rates, starts, corpus, order, traits, found, marks, entries,
            values, places, others, chances,
        )  # fmt: skip
        if count == 0:
            return step
        best = score(count, marks, entries, values, places, weights, biases, slopes, units, shares)
        matched = (marks[CHOSEN_SETS + 4] - BY_SHAPE) & 3
        claims[step] = rates[sure_row(shares[best], matched), RATE]
        if step == 0:
            marks[SPEAKER] = loudest_input(best, marks, entries, values, slopes)
            marks[BEST] = best
            marks[ORDER] = marks[CHOSEN_SETS + 1] - BY_LOCAL_ORDER
        token = found[best]
        text[state[LENGTH]] = token
        state[LENGTH] += 1
        step_state(state, token, traits)
        step_pointer(state, text)
        write_keys(text, state, words, traits)
    return budget


@compiled_lean(
    f"void(int64, float32[:,::1], float32[:,::1], float32[::1], int32[:,::1], {GATHER}, "
    "float32[:,::1], float32[:,::1], float32[::1])"
)
def learn_answer(
    end: int,
    weights: Numbers,
    squares: Numbers,
    biases: Numbers,
    heads: Words,
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
    slopes: Numbers,
    units: Numbers,
    shares: Numbers,
) -> None:
    """Let the text go on to `end` with tokens of the answer, and learn from each how to mix."""
    while state[LENGTH] < end:
        at = state[LENGTH]
        token = text[at]
        count = gather(
            text, state, nodes, octets, words, memory_nodes, memory_octets, rates, recycled, recycled_pairs,
            recycled_rates, window, pool, pool_rates, starts, corpus, order, traits, found, marks, entries,
            values, places, others, chances,
        )  # fmt: skip
        came = -1
        for candidate in range(count):
            if found[candidate] == token:
                came = candidate
            move_rate(rates, marks[PRIORS + candidate], found[candidate] == token, PRIOR_SPAN)
        if count > 0:
            best = score(count, marks, entries, values, places, weights, biases, slopes, units, shares)
            matched = (marks[CHOSEN_SETS + 4] - BY_SHAPE) & 3
            move_rate(rates, sure_row(shares[best], matched), best == came, SURE_SPAN)
        if came >= 0:
            teach(
                came, count, marks, entries, values, places, weights, squares, biases, slopes, units, shares
            )  # fmt: skip
        if state[AT] >= 0:
            move_rate(rates, POINTER_RATES + pointer_rate(state), text[state[AT]] == token, POINTER_SPAN)
        index_text(text, at + 1, state, nodes, octets, words, heads, traits)
