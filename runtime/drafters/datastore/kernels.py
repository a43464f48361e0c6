"""Search a datastore for the end of a text, with compiled functions.

Places are sorted by their tokens read backwards. So the places of all shorter forms of a context lie around
the places of its longest form, and one binary search finds them all.
"""

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters.candidates import MAX_CANDIDATES, Chances
from anespec.runtime.drafters.compiled import compiled, compiled_lean
from anespec.runtime.drafters.datastore.stored import Order, Starts, Text
from anespec.runtime.drafters.texts import Tokens

MAX_CONTEXT = 16
"""The most tokens of a context that are compared."""

STEPS = 16
"""The number of places that are sampled on either side of the nearest one."""

UNIT_STEPS = 4
"""The number of these places that are adjacent; each further one is twice as far away as the one before."""

ORDERS = 3
"""The number of context lengths that candidates are taken from: the longest match, then half as long each."""

STORE_TYPES = "Array(int64, 1, 'C', readonly=True), " + 2 * "Array(int32, 1, 'C', readonly=True), "
"""The types of a datastore's starts, text and order, as signatures write them."""

_STORE = "Array(int32, 1, 'C', readonly=True), "


@compiled_lean(f"int64({_STORE}int64, int32[::1], int64, int64, int64)")
def _match_length(store: Text, place: int, text: Tokens, length: int, matched: int, most: int) -> int:
    """Return how many tokens up to and including a place match the end of `text[:length]`, at most `most`.

    The first `matched` of them are known to match.
    """
    while matched < most and 0 <= place - matched < len(store):
        if store[place - matched] != text[length - 1 - matched]:
            break
        matched += 1
    return matched


@compiled_lean(f"UniTuple(int64, 2)({_STORE}{_STORE}int32[::1], int64, int64, int64, int64)")
def _nearest(
    store: Text, order: Order, text: Tokens, length: int, first: int, end: int, most: int
) -> tuple[int, int]:
    """Return an index in `order` of a place with the longest match of the text's end, and its length.

    The places from index `first` to before `end` are searched; all of them have the text's last token.
    """
    low, high = first, end
    # Places between two others match the text's end at least as far as the worse of the two.
    matched_low = matched_high = 1
    while low < high:
        middle = (low + high) // 2
        place = order[middle]
        matched = _match_length(store, place, text, length, min(matched_low, matched_high), most)
        beyond = place - matched
        if matched < most and (not 0 <= beyond < len(store) or store[beyond] < text[length - 1 - matched]):
            low = middle + 1
            matched_low = matched
        else:
            high = middle
            matched_high = matched
    # A side that never moved has no place outside of it.
    if high < end and (low == first or matched_high >= matched_low):
        return high, matched_high
    return low - 1, matched_low


@compiled_lean(f"int64({STORE_TYPES}int32[::1], int64, int32[::1], int64[::1])")
def _sample(
    starts: Starts,
    store: Text,
    order: Order,
    text: Tokens,
    length: int,
    followers: Tokens,
    match_lengths: NDArray[np.int64],
) -> int:
    """Sample places around the nearest one: write the token after each, and the length of its match.

    Return the number of samples.
    """
    last = text[length - 1]
    if not 0 <= last < len(starts) - 1:
        return 0
    first, end = starts[last], starts[last + 1]
    if first == end:
        return 0
    nearest, longest = _nearest(store, order, text, length, first, end, min(MAX_CONTEXT, length))
    count = 0
    for step in range(-STEPS, STEPS + 1):
        distance = abs(step)
        if distance > UNIT_STEPS:
            distance = UNIT_STEPS << (distance - UNIT_STEPS)
        index = nearest + (distance if step > 0 else -distance)
        if not first <= index < end:
            continue
        place = order[index]
        if not 0 <= place < len(store) - 1 or store[place + 1] < 0:
            continue
        followers[count] = store[place + 1]
        match_lengths[count] = _match_length(store, place, text, length, 1, longest)
        count += 1
    return count


@compiled(f"UniTuple(int64, 2)({STORE_TYPES}int32[::1], int64, int32[::1], float64[::1])")
def datastore_guess(
    starts: Starts, store: Text, order: Order, text: Tokens, length: int, found: Tokens, chances: Chances
) -> tuple[int, int]:
    """Write the candidates after `text[:length]` and their probabilities to `found` and `chances`.

    Return their number, at most MAX_CANDIDATES, and the length of the longest match. A probability is mixed
    from several orders (lengths of context). An order of n places with d different followers passes the
    probability d / (n + d) on to the next shorter order (escape method C of PPM).
    """
    if length < 1 or len(order) == 0:
        return 0, 0
    followers = np.empty(2 * STEPS + 1, np.int32)
    match_lengths = np.empty(2 * STEPS + 1, np.int64)
    samples = _sample(starts, store, order, text, length, followers, match_lengths)
    longest = 0
    for sample in range(samples):
        longest = max(longest, match_lengths[sample])
    count = 0
    left = 1.0
    seen = np.empty(MAX_CANDIDATES, np.int64)
    matched = longest
    for _ in range(ORDERS):
        if matched == 0:
            break
        seen[:count] = 0
        places = different = 0
        for sample in range(samples):
            if match_lengths[sample] < matched:
                continue
            places += 1
            at = 0
            while at < count and found[at] != followers[sample]:
                at += 1
            if at == MAX_CANDIDATES:
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
        matched //= 2
    return count, longest
