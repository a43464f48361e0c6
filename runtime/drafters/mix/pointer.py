"""Follow the copy pointer: a place of the text from which the following text is copied; compiled.

The pointer survives a miss (a token that differs from the copied one). After a miss it stores the place that
it left for some tokens, and continues in this order: after the stored place if its token comes; after the
next occurrence of the new token within SEARCHED_TOKENS tokens; one token further. After too many misses it is
dropped. It moves to the most recent match of one of LENGTHS tokens if that match is longer than its present
run.
"""

from anespec.runtime.drafters.compiled import compiled_lean
from anespec.runtime.drafters.mix.contexts import mixed
from anespec.runtime.drafters.mix.layout import MISS_STEPS, RUN_STEPS, Longs, Words
from anespec.runtime.drafters.mix.state import AT, LENGTH, MISSES, OLD_AT, OLD_LEFT, RUN

LENGTHS = (20, 12, 8, 5, 3)
"""The lengths of matches that are indexed. The longest is searched first: it is the likeliest to continue."""

MIN_MATCH = 3
"""Tokens that must really be equal, since different tokens may have equal hashes."""

MAX_COMPARED = 64
"""The most tokens that are compared for a match."""

KEPT_TOKENS = 8
"""Tokens for which the place that was left at a miss is stored."""

SEARCHED_TOKENS = 8
"""The number of copied tokens in which the new token is searched: the text may leave some out."""

MAX_MISSES = 5
"""The most misses among the last eight tokens."""


@compiled_lean("int64(int32[::1], int64, int64, int64)")
def _hash_of(text: Words, length: int, count: int, rows: int) -> int:
    """Return the row of the last `count` tokens; `rows` is a power of two."""
    value = count
    for back in range(1, count + 1):
        value = mixed(value, text[length - back])
    return value >> 20 & rows - 1


@compiled_lean("int64(int64)")
def ones(bits: int) -> int:
    """Return the number of set bits."""
    count = 0
    while bits:
        count += bits & 1
        bits >>= 1
    return count


@compiled_lean("void(int64[::1])")
def drop_pointer(state: Longs) -> None:
    """Make the pointer point nowhere."""
    state[AT] = -1
    state[RUN] = 0
    state[MISSES] = 0
    state[OLD_AT] = -1
    state[OLD_LEFT] = 0


@compiled_lean("void(int64[::1], int32[::1])")
def step_pointer(state: Longs, text: Words) -> None:
    """Move the pointer after a new last token of the text."""
    last = state[LENGTH] - 1
    at = state[AT]
    if at < 0 or at >= last:
        state[AT] = -1
        return
    token = text[last]
    if text[at] == token:
        state[AT] = at + 1
        state[RUN] += 1
        state[MISSES] = state[MISSES] << 1 & 255
    else:
        state[MISSES] = (state[MISSES] << 1 | 1) & 255
        state[RUN] = 0
        if ones(state[MISSES]) > MAX_MISSES:
            drop_pointer(state)
            return
        old = state[OLD_AT]
        go_on = at + 1
        if state[OLD_LEFT] > 0 and text[old] == token:
            go_on = old + 1
            state[OLD_LEFT] = 0
        else:
            for place in range(at + 1, min(at + SEARCHED_TOKENS, last)):
                if text[place] == token:
                    go_on = place + 1
                    break
            if state[OLD_LEFT] == 0:
                state[OLD_AT] = at
                state[OLD_LEFT] = KEPT_TOKENS + 1
        state[AT] = go_on
    if state[OLD_LEFT] > 0:
        state[OLD_LEFT] -= 1


@compiled_lean("void(int64[::1], int32[::1], int32[:,::1])")
def aim_pointer(state: Longs, text: Words, heads: Words) -> None:
    """Move the pointer to the most recent match if it is longer than its run; index the end of the text."""
    length = state[LENGTH]
    searching = True
    for kind in range(len(LENGTHS)):
        count = LENGTHS[kind]
        if length < count:
            continue
        row = _hash_of(text, length, count, heads.shape[1])
        behind = heads[kind, row]
        heads[kind, row] = length
        if not searching or behind == 0:
            continue
        matched = 0
        while matched < MAX_COMPARED and behind > matched:
            if text[behind - 1 - matched] != text[length - 1 - matched]:
                break
            matched += 1
        if matched >= MIN_MATCH:
            searching = False
            if behind != state[AT] and (matched > state[RUN] or state[AT] < 0):
                drop_pointer(state)
                state[AT] = behind
                state[RUN] = matched


@compiled_lean("int64(int64)")
def run_step(run: int) -> int:
    """Return the bin of a run's length, one of RUN_STEPS."""
    for step in range(RUN_STEPS - 1):
        if run < (1, 2, 4, 7, 12, 20, 40)[step]:
            return step
    return RUN_STEPS - 1


@compiled_lean("int64(int64[::1])")
def pointer_step(state: Longs) -> int:
    """Return the bin of the pointer's state, one of 32: its run, and misses among the last three tokens."""
    return run_step(state[RUN]) * MISS_STEPS + ones(state[MISSES] & 7)


@compiled_lean("int64(int64[::1])")
def pointer_rate(state: Longs) -> int:
    """Return the bin of the pointer's state, one of 128, which also counts the misses before."""
    return pointer_step(state) * MISS_STEPS + min(ones(state[MISSES] >> 3), MISS_STEPS - 1)
