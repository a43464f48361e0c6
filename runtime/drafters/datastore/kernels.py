"""Looking for contexts in a datastore, compiled.

A context is looked for from its last token backwards. So the places of all its shorter forms lie around those
of its longest one, and one binary search finds them all.
"""

import numpy as np

from anespec.runtime.drafters.candidates import MOST_CANDIDATES, Chances
from anespec.runtime.drafters.compiled import compiled
from anespec.runtime.drafters.datastore.stored import Order, Starts, Text
from anespec.runtime.drafters.texts import Tokens

LONGEST = 16
"""Tokens of a context that are compared."""

SAMPLES = 32
"""Places of a context that are looked at, evenly spread over all of them."""

MOST_ORDERS = 3
"""Lengths of context that candidates are taken from, the longest first, then each half of the one before."""

READ_ONLY = "Array(int64, 1, 'C', readonly=True), " + 2 * "Array(int32, 1, 'C', readonly=True), "
"""The types of a datastore's starts, text and order, as signatures write them."""


@compiled("int64(Array(int32, 1, 'C', readonly=True), int64, int32[::1], int64, int64)")
def _alike(store: Text, place: int, text: Tokens, length: int, most: int) -> int:
    """How many tokens before and at a place are those that the text ends with, up to `most`."""
    alike = 0
    while alike < most and 0 <= place - alike < len(store):
        if store[place - alike] != text[length - 1 - alike]:
            break
        alike += 1
    return alike


@compiled(
    "int64(Array(int32, 1, 'C', readonly=True), Array(int32, 1, 'C', readonly=True), int32[::1], int64, int64,"
    " int64, int64, int64)"
)
def _edge(
    store: Text, order: Order, text: Tokens, length: int, alike: int, inside: int, last: int, step: int
) -> int:
    """The farthest index from `inside` on, towards `last`, of a place with `alike` tokens of the text's."""
    reach = 1
    near = inside
    far = inside
    while far != last:
        far = inside + step * reach
        if (last - far) * step < 0:
            far = last
        if _alike(store, order[far], text, length, alike) < alike:
            break
        near = far
        reach *= 2
    while (far - near) * step > 1:
        middle = (near + far) // 2
        if _alike(store, order[middle], text, length, alike) < alike:
            far = middle
        else:
            near = middle
    return near


@compiled(f"UniTuple(int64, 2)({READ_ONLY}int32[::1], int64, int64)")
def _nearest(
    starts: Starts, store: Text, order: Order, text: Tokens, length: int, most: int
) -> tuple[int, int]:
    """The index of a place that has most of the text's last tokens, and how many, 0 for none."""
    last = text[length - 1]
    if not 0 <= last < len(starts) - 1:
        return 0, 0
    first, end = starts[last], starts[last + 1]
    low, high = first, end
    while low < high:
        middle = (low + high) // 2
        place = order[middle]
        alike = _alike(store, place, text, length, most)
        beyond = place - alike
        is_less = alike < most and (beyond < 0 or store[beyond] < text[length - 1 - alike])
        if is_less:
            low = middle + 1
        else:
            high = middle
    best, longest = 0, 0
    for index in (low, low - 1):
        if first <= index < end:
            alike = _alike(store, order[index], text, length, most)
            if alike > longest:
                best, longest = index, alike
    return best, longest


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
    inside, longest = _nearest(starts, store, order, text, length, min(LONGEST, length))
    if longest == 0:
        return 0, 0
    last = text[length - 1]
    count = 0
    left = 1.0
    seen = np.empty(MOST_CANDIDATES, np.int64)
    alike = longest
    for _ in range(MOST_ORDERS):
        low, high = starts[last], starts[last + 1] - 1
        if alike > 1:
            low = _edge(store, order, text, length, alike, inside, low, -1)
            high = _edge(store, order, text, length, alike, inside, high, 1)
        places = high - low + 1
        samples = min(places, SAMPLES)
        seen[:count] = 0
        different = 0
        for sample in range(samples):
            place = order[low + sample * places // samples] + 1
            follows = store[place] if 0 < place < len(store) else -1
            if follows < 0:
                continue
            at = 0
            while at < count and found[at] != follows:
                at += 1
            if at == MOST_CANDIDATES:
                different += 1
                continue
            if at == count:
                found[at] = follows
                chances[at] = 0.0
                seen[at] = 0
                count += 1
            different += seen[at] == 0
            seen[at] += 1
        for at in range(count):
            chances[at] += left * seen[at] / (samples + different)
        if different:
            left *= different / (samples + different)
        if alike == 1:
            break
        alike //= 2
    return count, longest


@compiled(f"int64({READ_ONLY}int32[::1], int64, int32[::1], float64[::1])")
def datastore_candidates(
    starts: Starts, store: Text, order: Order, text: Tokens, length: int, found: Tokens, chances: Chances
) -> int:
    """The same without the order."""
    return datastore_guess(starts, store, order, text, length, found, chances)[0]
