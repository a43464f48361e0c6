"""Walk over a text: index it, propose the next tokens, learn weights from an answer, fold it into memory;
compiled."""

from anespec.runtime.drafters.compiled import compiled_lean, takes
from anespec.runtime.drafters.mix.contexts import mixed, write_keys
from anespec.runtime.drafters.mix.inputs import gather
from anespec.runtime.drafters.mix.layout import (
    BY_LOCAL_ORDER,
    BY_SHAPE,
    CONTEXTS,
    IMAGE,
    POINTER_RATES,
    RATE,
    TABLES_MATCHED,
    TAKEN,
    TEXT,
    TRAITS,
    Image,
    Longs,
    Text,
    Words,
)
from anespec.runtime.drafters.mix.nodes import count_follower, note_word
from anespec.runtime.drafters.mix.others import OTHERS, Others
from anespec.runtime.drafters.mix.pointer import aim_pointer, drop_pointer, pointer_rate, step_pointer
from anespec.runtime.drafters.mix.scorer import (
    POINTER_SPAN,
    PRIOR_SPAN,
    SURE_SPAN,
    loudest_input,
    move_rate,
    score,
    sure_row,
    teach,
)
from anespec.runtime.drafters.mix.scratch import (
    BEST,
    CHOSEN_LOCAL,
    CHOSEN_SHAPE,
    ORDER,
    PRIORS,
    SCRATCH,
    TOP_INPUT,
    Scratch,
)
from anespec.runtime.drafters.mix.state import ANSWER_PLACE, AT, KEYS, LENGTH, OPENING, STATE, step_state

OPENING_TOKENS = 6
"""The number of tokens after which a request's opening identifies the task."""


@compiled_lean("void(int64[::1], int32[::1], int64, int32[:,::1], int32[:,::1])")
def begin_text(state: Longs, opening: Words, count: int, words: Words, traits: Words) -> None:
    """Set a state to the beginning of a text, whose request begins with the `count` tokens of `opening`."""
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
    """Mark the beginning of the answer."""
    state[ANSWER_PLACE] = 0
    drop_pointer(state)


@compiled_lean(takes(TEXT, "int64", TRAITS))
def index_text(text: Text, end: int, traits: Words) -> None:
    """Advance the text to `end`, and count each token as a follower of its contexts in the text's nodes."""
    tokens, state = text.tokens, text.state
    while state[LENGTH] < end:
        at = state[LENGTH]
        token = tokens[at]
        for context in range(CONTEXTS):
            count_follower(text.nodes, text.octets, state[KEYS + context], token)
        note_word(text.words, tokens[at - 1] if at > 0 else -1, token, at + 1)
        state[LENGTH] = at + 1
        step_state(state, token, traits)
        step_pointer(state, tokens)
        aim_pointer(state, tokens, text.heads)
        write_keys(tokens, state, text.words, traits)


@compiled_lean(takes("int32[::1], int64, int64, int64, int64, int64[::1], int32[:,::1]", IMAGE, TRAITS))
def fold_text(
    tokens: Words,
    first: int,
    end: int,
    begin: int,
    answer: int,
    state: Longs,
    words: Words,
    image: Image,
    traits: Words,
) -> None:
    """Walk over the tokens from `first` to `end`, and count those from `begin` on as followers in memory.

    Each call continues at the end of the call before, with its `state` and `words`. `answer` is the index at
    which the answer begins.
    """
    if first == 0:
        begin_text(state, tokens, len(tokens), words, traits)
    for at in range(first, end):
        token = tokens[at]
        if at == answer:
            state[ANSWER_PLACE] = 0
            write_keys(tokens, state, words, traits)
        if at >= begin:
            for context in range(CONTEXTS):
                image.header[TAKEN] += count_follower(image.nodes, image.octets, state[KEYS + context], token)
        note_word(words, tokens[at - 1] if at > 0 else -1, token, at + 1)
        state[LENGTH] = at + 1
        step_state(state, token, traits)
        write_keys(tokens, state, words, traits)


@compiled_lean("int64(int64[::1])")
def _tables_matched(marks: Longs) -> int:
    """Return which tables have a longer context, as bits (see MATCHED_LOCAL). Call this after `gather`."""
    matched: int = (marks[CHOSEN_SHAPE] - BY_SHAPE) % TABLES_MATCHED
    return matched


@compiled_lean(takes("int64", TEXT, IMAGE, OTHERS, TRAITS, SCRATCH, returns="int64"))
def propose_chain(
    budget: int, here: Text, image: Image, others: Others, traits: Words, scratch: Scratch
) -> int:
    """Write a chain of up to `budget` tokens after the text, and their probabilities to `claims`.

    Return the number of tokens. `budget` is at most LONGEST_CHAIN, and the text has room for it. The text's
    state does not change.
    """
    marks, tokens, state = scratch.marks, here.tokens, scratch.state
    for place in range(STATE):
        state[place] = here.state[place]
    text = Text(tokens, state, here.nodes, here.octets, here.words, here.heads)
    for step in range(budget):
        count = gather(text, image, others, traits, scratch)
        if count == 0:
            return step
        best = score(count, image, scratch)
        scratch.claims[step] = image.rates[sure_row(scratch.shares[best], _tables_matched(marks)), RATE]
        if step == 0:
            marks[TOP_INPUT] = loudest_input(best, scratch)
            marks[BEST] = best
            marks[ORDER] = marks[CHOSEN_LOCAL] - BY_LOCAL_ORDER
        token = scratch.found[best]
        tokens[state[LENGTH]] = token
        state[LENGTH] += 1
        step_state(state, token, traits)
        step_pointer(state, tokens)
        write_keys(tokens, state, text.words, traits)
    return budget


@compiled_lean(takes("int64", TEXT, IMAGE, OTHERS, TRAITS, SCRATCH))
def learn_answer(end: int, text: Text, image: Image, others: Others, traits: Words, scratch: Scratch) -> None:
    """Advance the text to `end` over tokens of the answer, and learn the weights and rates from each."""
    marks, tokens, state, found, rates = scratch.marks, text.tokens, text.state, scratch.found, image.rates
    while state[LENGTH] < end:
        at = state[LENGTH]
        token = tokens[at]
        count = gather(text, image, others, traits, scratch)
        came = -1
        for candidate in range(count):
            if found[candidate] == token:
                came = candidate
            move_rate(rates, marks[PRIORS + candidate], found[candidate] == token, PRIOR_SPAN)
        if count > 0:
            best = score(count, image, scratch)
            move_rate(rates, sure_row(scratch.shares[best], _tables_matched(marks)), best == came, SURE_SPAN)
        if came >= 0:
            teach(came, count, image, scratch)
        if state[AT] >= 0:
            move_rate(rates, POINTER_RATES + pointer_rate(state), tokens[state[AT]] == token, POINTER_SPAN)
        index_text(text, at + 1, traits)
