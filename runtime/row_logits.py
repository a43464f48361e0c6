"""What is asked about a row's logits, found in them without rounding the whole row to fp16 where it can be.

A row may come in several parts, one for each slice of the vocabulary, and in f32; what is found is that of
the whole row in fp16.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.passes import Candidate, Logits, Need, RowLogits

Part = NDArray[np.float16] | NDArray[np.float32]

CHUNK = 256
"""The largest numbers are looked for in the maxima of so many each."""


def row_logits(row: Part | Sequence[Part], need: Need) -> RowLogits:
    """What is needed of a row's logits [vocabulary], which may be cut into consecutive parts."""
    parts = [row] if isinstance(row, np.ndarray) else list(row)
    return RowLogits(
        logits=_in_one(parts) if need.logits else None,
        best=_best(parts) if need.best else None,
        top=_top(parts, need.top) if need.top else (),
        chosen=tuple(_logit(parts, token) for token in need.chosen),
    )


def best_token(logits: Logits) -> int:
    """The index of the largest logit, the lowest on ties; where one is not finite, of one of those.

    The bits of fp16 numbers order like integers, those of negative ones backwards, and numpy compares
    integers 400 times faster. What is not finite has the largest bits of its sign.
    """
    bits = logits.view(np.int16)
    best = int(bits.argmax())
    least = int(logits.view(np.uint16).argmax())
    if not np.isfinite(logits[least]):
        return least
    if bits[best] < 0:
        best = int(bits.argmin())
    elif bits[best] == 0:
        best = int(logits.argmax())  # 0 and -0 tie
    return best


def to_fp16(values: Part) -> Logits:
    """Rounded as shards return them; what is beyond fp16's range is infinite."""
    if values.dtype == np.float16:
        return values.view(np.float16)
    with np.errstate(over="ignore"):
        return values.astype(np.float16)


def _in_one(parts: Sequence[Part]) -> Logits:
    if len(parts) == 1:
        return np.ascontiguousarray(to_fp16(parts[0]))
    logits = np.empty(sum(map(len, parts)), np.float16)
    with np.errstate(over="ignore"):
        np.concatenate(parts, out=logits, casting="same_kind")
    return logits


def _logit(parts: Sequence[Part], token: int) -> float:
    for part in parts:
        if token < len(part):
            return float(to_fp16(part[token : token + 1])[0])
        token -= len(part)
    raise IndexError("a token beyond the vocabulary")


def _best(parts: Sequence[Part]) -> Candidate:
    """The best candidate of all parts, the earliest on ties."""
    first, found = 0, []
    for part in parts:
        best = _best_of(part)
        found.append(Candidate(first + best.token, best.logit))
        first += len(part)
    strange = [candidate for candidate in found if not np.isfinite(candidate.logit)]
    return strange[0] if strange else max(found, key=lambda candidate: candidate.logit)


def _best_of(part: Part) -> Candidate:
    if part.dtype == np.float32:
        largest, least = to_fp16(np.array([part.max(), part.min()], np.float32))
        if np.isfinite(largest) and np.isfinite(least):
            # Rounding keeps the order, so only numbers above the next smaller fp16 can round to the largest.
            likely = np.flatnonzero(part > np.nextafter(largest, np.float16(-np.inf)).astype(np.float32))
            token = likely[np.flatnonzero(to_fp16(part[likely]) == largest)[0]]
            return Candidate(int(token), float(largest))
    logits = np.ascontiguousarray(to_fp16(part))
    token = best_token(logits)
    return Candidate(token, float(logits[token]))


def _top(parts: Sequence[Part], count: int) -> tuple[Candidate, ...]:
    """The `count` largest logits, largest first, the lower token first on ties."""
    first, tokens, values = 0, [], []
    for part in parts:
        likely = _likely(part, count)
        tokens.append(first + likely)
        values.append(to_fp16(part[likely]).astype(np.float32))
        first += len(part)
    found, logits = np.concatenate(tokens), np.concatenate(values)
    order = np.argsort(-logits, kind="stable")[:count]
    return tuple(Candidate(int(found[i]), float(logits[i])) for i in order)


def _likely(part: Part, count: int) -> NDArray[np.intp]:
    """Ascending indices that have the `count` largest of a part among them."""
    whole = len(part) // CHUNK * CHUNK
    if whole // CHUNK <= count:
        return np.arange(len(part))
    maxima = part[:whole].reshape(-1, CHUNK).max(axis=1)
    limit = to_fp16(np.partition(maxima, len(maxima) - count)[len(maxima) - count][None])[0]
    # So many maxima round to the limit or more; what does not exceed the next smaller fp16 rounds to less.
    return np.flatnonzero(~(part <= np.nextafter(limit, np.float16(-np.inf)).astype(part.dtype)))
