"""Sort a datastore's places: a library sorts pieces that fit into memory, then they are merged."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.drafters.compiled import compiled
from anespec.runtime.drafters.datastore.stored import Order, Starts, Text

MAX_COMPARED = 32
"""Tokens after which places of different pieces count as equal; searches never use a longer context."""

MERGE_BATCH = 1 << 20
"""The number of places that are merged at a time."""

_KEY_TOKENS = 3
_KEY_BITS = 21

Result = TypeVar("Result")
Runs = NDArray[np.int64]
Keys = NDArray[np.uint64]


@compiled("void(Array(int32, 1, 'C', readonly=True), int64, int64, int64, uint8[::1])")
def _pack_backwards(text: Text, begin: int, end: int, width: int, packed: NDArray[np.uint8]) -> None:
    """Write a piece of text backwards to `packed`, each entry + 1 as `width` bytes, the highest byte
    first."""
    at = 0
    for place in range(end - 1, begin - 1, -1):
        entry = text[place] + 1
        for byte in range(width - 1, -1, -1):
            packed[at] = (entry >> (8 * byte)) & 255
            at += 1


@compiled("int64(Array(int32, 1, 'C', readonly=True), int64, int64, int32[::1])")
def _keep_places(text: Text, end: int, width: int, order: Order) -> int:
    """Turn the suffix array of packed bytes into the sorted places, in the same array; return their number.

    Only places remain where a token begins that another token of the same document follows.
    """
    kept = 0
    for at in range(len(order)):
        if order[at] % width == 0:
            place = end - 1 - order[at] // width
            if text[place] >= 0 and text[place + 1] >= 0:
                order[kept] = place
                kept += 1
    return kept


def interruptible(work: Callable[[], Result]) -> Result:
    """Return what `work` returns; run it in another thread, so that ^C ends the wait at once."""
    done: Future[Result] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="anespec sorting", daemon=True).start()
    return done.result()


def sorted_places(text: Text, begin: int, end: int, vocabulary: int) -> Order:
    """Return the sorted places of `text[begin:end]`, which begins and ends with a separator.

    This takes 10 bytes of memory per entry, or 15 if the vocabulary has more than 65534 tokens.
    """
    from pydivsufsort import divsufsort

    width = 1 if vocabulary < 1 << 8 else 2 if vocabulary < (1 << 16) - 1 else 3
    packed = np.empty((end - begin) * width, np.uint8)
    _pack_backwards(text, begin, end, width, packed)
    # The library sorts for seconds without a reaction to ^C, but other threads run meanwhile.
    order = interruptible(lambda: cast(Order, divsufsort(packed)))
    return order[: _keep_places(text, end, width, order)]


@compiled("uint64(Array(int32, 1, 'C', readonly=True), int64)")
def _key(text: Text, place: int) -> np.uint64:
    """Return the last tokens up to and including a place as one number that sorts as they do."""
    key = np.uint64(0)
    for back in range(_KEY_TOKENS):
        key <<= np.uint64(_KEY_BITS)
        entry = text[place - back]
        if entry < 0:
            return key << np.uint64(_KEY_BITS * (_KEY_TOKENS - 1 - back))
        key |= np.uint64(entry + 1)
    return key


@compiled("boolean(Array(int32, 1, 'C', readonly=True), int64, int64)")
def _comes_before(text: Text, one: int, other: int) -> bool:
    """Return whether a place comes before another place with the same key."""
    for back in range(MAX_COMPARED):
        mine, theirs = text[one - back], text[other - back]
        if mine != theirs:
            return bool(mine < theirs)
        if mine < 0:
            break
    return False


@compiled(
    "int64(Array(int32, 1, 'C', readonly=True), Array(int32, 1, 'C', readonly=True), int64[::1], "
    "int64[::1], uint64[::1], int32[::1], int64[::1])"
)
def _merge(
    text: Text, runs: Order, heads: Runs, ends: Runs, keys: Keys, merged: Order, starts: Starts
) -> int:
    """Merge as many places as fit into `merged`, and count them by token; return their number."""
    for run in range(len(heads)):
        if heads[run] < ends[run]:
            keys[run] = _key(text, runs[heads[run]])
    done = 0
    while done < len(merged):
        best = -1
        for run in range(len(heads)):
            if heads[run] == ends[run]:
                continue
            if (
                best < 0
                or keys[run] < keys[best]
                or (keys[run] == keys[best] and _comes_before(text, runs[heads[run]], runs[heads[best]]))
            ):
                best = run
        if best < 0:
            break
        place = runs[heads[best]]
        merged[done] = place
        done += 1
        starts[text[place] + 1] += 1
        heads[best] += 1
        if heads[best] < ends[best]:
            keys[best] = _key(text, runs[heads[best]])
    return done


def merge_runs(
    text: Text, runs: Order, lengths: Sequence[int], vocabulary: int, write: Callable[[Order], object]
) -> Starts:
    """Merge sorted runs of places, which lie one after another in `runs`, and pass them to `write` in parts.

    Return the index at which the places of each token begin, [vocabulary + 1].
    """
    ends = np.cumsum(np.array(lengths, np.int64))
    heads = ends - np.array(lengths, np.int64)
    keys = np.zeros(len(lengths), np.uint64)
    merged = np.empty(MERGE_BATCH, np.int32)
    starts = np.zeros(vocabulary + 1, np.int64)
    while count := _merge(text, runs, heads, ends, keys, merged, starts):
        write(merged[:count])
    return np.cumsum(starts)
