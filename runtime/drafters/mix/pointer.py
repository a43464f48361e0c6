"""The copy pointer: a place of this text that is being copied, which survives a miss; compiled.

After a miss it keeps the place that it left, for a few tokens. It goes on behind that if its token comes,
else behind the emitted token where that stands close ahead in what is copied, else one further. Too many
misses, and it is dropped. It is aimed anew at the most recent match of one of LENGTHS tokens, where
that is longer than its present run.
"""

from anespec.runtime.drafters.compiled import compiled_lean
from anespec.runtime.drafters.mix.contexts import mixed
from anespec.runtime.drafters.mix.layout import MISS_STEPS, RUN_STEPS, Longs, Words
from anespec.runtime.drafters.mix.state import AT, LENGTH, MISSES, OLD_AT, OLD_LEFT, RUN

LENGTHS = (20, 12, 8, 5, 3)
"""Tokens of the matches that are noted. The longest is looked for first: it is the likeliest to go on."""

SHORTEST = 3
"""Tokens that must really match, in addition to the hashes."""

MOST_COMPARED = 64
"""Tokens after which a match is long enough."""

KEPT = 8
"""Tokens for which the place that was left at a miss is kept."""

AHEAD = 8
"""Tokens of what is copied in which the emitted one is looked for, as text that was left out."""

MOST_MISSES = 5
"""Of the last eight tokens."""


@compiled_lean("int64(int32[::1], int64, int64, int64)")
def _hash_of(text: Words, length: int, count: int, rows: int) -> int:
    """Return the row for the last `count` tokens, among a number of rows that is a power of two."""
    value = count
    for back in range(1, count + 1):
        value = mixed(value, text[length - back])
    return value >> 20 & rows - 1


@compiled_lean("int64(int64)")
def ones(bits: int) -> int:
    """Return how many of the last eight bits are set."""
    count = 0
    while bits:
        count += bits & 1
        bits >>= 1
    return count


@compiled_lean("void(int64[::1])")
def drop_pointer(state: Longs) -> None:
    """Let it point nowhere."""
    state[AT] = -1
    state[RUN] = 0
    state[MISSES] = 0
    state[OLD_AT] = -1
    state[OLD_LEFT] = 0


@compiled_lean("void(int64[::1], int32[::1])")
def step_pointer(state: Longs, text: Words) -> None:
    """Let it follow the last token of the text, which has just come."""
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
        if ones(state[MISSES]) > MOST_MISSES:
            drop_pointer(state)
            return
        old = state[OLD_AT]
        go_on = at + 1
        if state[OLD_LEFT] > 0 and text[old] == token:
            go_on = old + 1
            state[OLD_LEFT] = 0
        else:
            for place in range(at + 1, min(at + AHEAD, last)):
                if text[place] == token:
                    go_on = place + 1
                    break
            if state[OLD_LEFT] == 0:
                state[OLD_AT] = at
                state[OLD_LEFT] = KEPT + 1
        state[AT] = go_on
    if state[OLD_LEFT] > 0:
        state[OLD_LEFT] -= 1


@compiled_lean("void(int64[::1], int32[::1], int32[:,::1])")
def aim_pointer(state: Longs, text: Words, heads: Words) -> None:
    """Aim at the most recent longer match, and note where the present ones end."""
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
        while matched < MOST_COMPARED and behind > matched:
            if text[behind - 1 - matched] != text[length - 1 - matched]:
                break
            matched += 1
        if matched >= SHORTEST:
            searching = False
            if behind != state[AT] and (matched > state[RUN] or state[AT] < 0):
                drop_pointer(state)
                state[AT] = behind
                state[RUN] = matched


@compiled_lean("int64(int64)")
def run_step(run: int) -> int:
    """A run's length in eight steps."""
    for step in range(RUN_STEPS - 1):
        if run < (1, 2, 4, 7, 12, 20, 40)[step]:
            return step
    return RUN_STEPS - 1


@compiled_lean("int64(int64[::1])")
def pointer_step(state: Longs) -> int:
    """The pointer's state in 32 steps: its run, and misses among the last three."""
    return run_step(state[RUN]) * MISS_STEPS + ones(state[MISSES] & 7)


@compiled_lean("int64(int64[::1])")
def pointer_rate(state: Longs) -> int:
    """Its state in 128 steps: with earlier misses too."""
    return pointer_step(state) * MISS_STEPS + min(ones(state[MISSES] >> 3), MISS_STEPS - 1)
