"""Looking for contexts in a datastore, compiled.

A context is looked for from its last token backwards. So the places of all its shorter forms lie around those
of its longest one, and one binary search finds them all.
"""

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters.candidates import MOST_CANDIDATES, Chances
from anespec.runtime.drafters.compiled import compiled, compiled_lean
from anespec.runtime.drafters.datastore.stored import Order, Starts, Text
from anespec.runtime.drafters.texts import Tokens

LONGEST = 16
"""Tokens of a context that are compared."""

STEPS = 16
"""Places on either side of the nearest that are looked at."""

CLOSE = 4
"""So many of them follow one another; each later one is twice as far away as the one before."""

ORDERS = 3
"""Lengths of context that candidates are taken from, the longest first, then each half of the one before."""

READ_ONLY = "Array(int64, 1, 'C', readonly=True), " + 2 * "Array(int32, 1, 'C', readonly=True), "
"""The types of a datastore's starts, text and order, as signatures write them."""

_STORE = "Array(int32, 1, 'C', readonly=True), "


@compiled_lean(f"int64({_STORE}int64, int32[::1], int64, int64, int64)")
def _alike(store: Text, place: int, text: Tokens, length: int, alike: int, most: int) -> int:
    """Return how many tokens before and at a place match the text's end, up to `most`; the first `alike` are
    known to match."""
    while alike < most and 0 <= place - alike < len(store):
        if store[place - alike] != text[length - 1 - alike]:
            break
        alike += 1
    return alike


@compiled_lean(f"UniTuple(int64, 2)({_STORE}{_STORE}int32[::1], int64, int64, int64, int64)")
def _nearest(
    store: Text, order: Order, text: Tokens, length: int, first: int, end: int, most: int
) -> tuple[int, int]:
    """The index, from `first` to before `end`, where all places have the text's last token, of a place that
    has most of its last tokens; and how many."""
    low, high = first, end
    # As many tokens as places just outside of both sides are alike, all between them are.
    alike_low = alike_high = 1
    while low < high:
        middle = (low + high) // 2
        place = order[middle]
        alike = _alike(store, place, text, length, min(alike_low, alike_high), most)
        beyond = place - alike
        if alike < most and (not 0 <= beyond < len(store) or store[beyond] < text[length - 1 - alike]):
            low = middle + 1
            alike_low = alike
        else:
            high = middle
            alike_high = alike
    # Where a side was never moved, nothing stands outside of it.
    if high < end and (low == first or alike_high >= alike_low):
        return high, alike_high
    return low - 1, alike_low


@compiled_lean(f"int64({READ_ONLY}int32[::1], int64, int32[::1], int64[::1])")
def _sample(
    starts: Starts,
    store: Text,
    order: Order,
    text: Tokens,
    length: int,
    followers: Tokens,
    alikes: NDArray[np.int64],
) -> int:
    """Write the followers of the places around the nearest, and the length of each match, the longest first
    on either side; return their number."""
    last = text[length - 1]
    if not 0 <= last < len(starts) - 1:
        return 0
    first, end = starts[last], starts[last + 1]
    if first == end:
        return 0
    nearest, longest = _nearest(store, order, text, length, first, end, min(LONGEST, length))
    count = 0
    for step in range(-STEPS, STEPS + 1):
        distance = abs(step)
        if distance > CLOSE:
            distance = CLOSE << (distance - CLOSE)
        index = nearest + (distance if step > 0 else -distance)
        if not first <= index < end:
            continue
        place = order[index]
        if not 0 <= place < len(store) - 1 or store[place + 1] < 0:
            continue
        followers[count] = store[place + 1]
        alikes[count] = _alike(store, place, text, length, 1, longest)
        count += 1
    return count


@compiled(f"UniTuple(int64, 2)({READ_ONLY}int32[::1], int64, int32[::1], float64[::1])")
def datastore_guess(
    starts: Starts, store: Text, order: Order, text: Tokens, length: int, found: Tokens, chances: Chances
) -> tuple[int, int]:
    """Candidates for what follows `text[:length]`: how many, at most MOST_CANDIDATES, and the longest match.

    A chance is what shares of the places of several orders come to: an order of n places with d different
    followers leaves d / (n + d) to the next shorter one (escape method C of PPM).
    """
    if length < 1 or len(order) == 0:
        return 0, 0
    followers = np.empty(2 * STEPS + 1, np.int32)
    alikes = np.empty(2 * STEPS + 1, np.int64)
    samples = _sample(starts, store, order, text, length, followers, alikes)
    longest = 0
    for sample in range(samples):
        longest = max(longest, alikes[sample])
    count = 0
    left = 1.0
    seen = np.empty(MOST_CANDIDATES, np.int64)
    alike = longest
    for _ in range(ORDERS):
        if alike == 0:
            break
        seen[:count] = 0
        places = different = 0
        for sample in range(samples):
            if alikes[sample] < alike:
                continue
            places += 1
            at = 0
            while at < count and found[at] != followers[sample]:
                at += 1
            if at == MOST_CANDIDATES:
                different += 1
                continue
            if at == count:
                found[at] = followers[sample]
                chances[at] = 0.0
                seen[at] = 0
                count += 1
            different += seen[at] == 0
            seen[at] += 1
        for at in range(count):
            chances[at] += left * seen[at] / (places + different)
        left *= different / (places + different)
        alike //= 2
    return count, longest
