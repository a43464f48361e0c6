"""Find the requested results in a row's logits, if possible without rounding the whole row to fp16.

A row may come in several slices of the vocabulary, and in fp32. The results are those of the whole row in
fp16.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.schema import BEST_CHANNELS, BEST_DIGIT, BEST_FIRST
from anespec.runtime.passes import Candidate, Logits, LogitsRequest, RowLogits
from anespec.system.errors import ArtifactError

VocabularySlice = NDArray[np.float16] | NDArray[np.float32]

CHUNK = 256
"""The number of logits per chunk; the largest logits are found through the maxima of chunks."""


def row_logits(row: VocabularySlice | Sequence[VocabularySlice], need: LogitsRequest) -> RowLogits:
    """Return the requested results of a row's logits [vocabulary], whole or in consecutive slices."""
    slices = [row] if isinstance(row, np.ndarray) else list(row)
    return RowLogits(
        logits=_in_one(slices) if need.logits else None,
        best=_best(slices) if need.best else None,
        top=_top(slices, need.top) if need.top else (),
        chosen=tuple(_logit(slices, token) for token in need.chosen),
    )


def best_of_slices(found: VocabularySlice, slices: Sequence[int]) -> RowLogits:
    """Return the best candidate of a row from the best ones of its slices, which the head has computed.

    `slices` are the numbers of tokens of the slices. `found` has BEST_CHANNELS numbers for each slice (see
    schema.BestHead).

    Raises:
        ArtifactError: `found` has another size, or a token in it is not in its slice.
    """
    if found.size != BEST_CHANNELS * len(slices):
        raise ArtifactError(
            f"the head shards return {found.size} numbers for a row, not {BEST_CHANNELS * len(slices)} for "
            f"{len(slices)} slices; convert with --head-outputs logits"
        )
    candidates, before = [], 0
    numbers = to_fp16(found).reshape(-1, BEST_CHANNELS).tolist()
    for (logit, first, second, is_finite), tokens in zip(numbers, slices, strict=True):
        token, best = 0.0, math.nan
        if is_finite == 1:
            token, best = (BEST_FIRST - first) * BEST_DIGIT + BEST_DIGIT - second, logit
        if not 0 <= token < tokens:
            raise ArtifactError(
                f"the head shards return no best token (a slice of {tokens} tokens has no token {token:g}); "
                "convert with --head-outputs logits"
            )
        candidates.append(Candidate(before + int(token), best))
        before += tokens
    return RowLogits(best=best_candidate(candidates))


def best_token(logits: Logits) -> int:
    """Return the index of the largest logit, the lowest on ties; if some are not finite, the index of one of
    them.

    The bits of fp16 numbers are ordered like integers, in reverse for negative numbers, and numpy compares
    integers 400 times faster. Numbers that are not finite have the largest bits of their sign.
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


def to_fp16(values: VocabularySlice) -> Logits:
    """Round logits to fp16, as shards return them; values beyond fp16's range become infinite."""
    if values.dtype == np.float16:
        return values.view(np.float16)
    with np.errstate(over="ignore"):
        return values.astype(np.float16)


def _in_one(slices: Sequence[VocabularySlice]) -> Logits:
    if len(slices) == 1:
        return np.ascontiguousarray(to_fp16(slices[0]))
    logits = np.empty(sum(map(len, slices)), np.float16)
    with np.errstate(over="ignore"):
        np.concatenate(slices, out=logits, casting="same_kind")
    return logits


def _logit(slices: Sequence[VocabularySlice], token: int) -> float:
    for piece in slices:
        if token < len(piece):
            return float(to_fp16(piece[token : token + 1])[0])
        token -= len(piece)
    raise IndexError("a token beyond the vocabulary")


def _best(slices: Sequence[VocabularySlice]) -> Candidate:
    """Return the best candidate of all slices, the earliest on ties."""
    first, found = 0, []
    for piece in slices:
        best = _best_of(piece)
        found.append(Candidate(first + best.token, best.logit))
        first += len(piece)
    return best_candidate(found)


def best_candidate(found: Sequence[Candidate]) -> Candidate:
    """Return the largest candidate of all slices, the first on ties; or the first that is not finite."""
    infinite = [candidate for candidate in found if not np.isfinite(candidate.logit)]
    return infinite[0] if infinite else max(found, key=lambda candidate: candidate.logit)


def _best_of(piece: VocabularySlice) -> Candidate:
    if piece.dtype == np.float32:
        largest, least = to_fp16(np.array([piece.max(), piece.min()], np.float32))
        if np.isfinite(largest) and np.isfinite(least):
            # Rounding keeps the order, so only numbers above the next smaller fp16 can round to the largest.
            with np.errstate(over="ignore"):  # the number below the smallest fp16 is -inf
                next_smaller = np.nextafter(largest, np.float16(-np.inf)).astype(np.float32)
            likely = np.flatnonzero(piece > next_smaller)
            token = likely[np.flatnonzero(to_fp16(piece[likely]) == largest)[0]]
            return Candidate(int(token), float(largest))
    logits = np.ascontiguousarray(to_fp16(piece))
    token = best_token(logits)
    return Candidate(token, float(logits[token]))


def _top(slices: Sequence[VocabularySlice], count: int) -> tuple[Candidate, ...]:
    """Return the `count` largest logits, largest first, the lower token first on ties."""
    first, tokens, values = 0, [], []
    for piece in slices:
        likely = _likely(piece, count)
        tokens.append(first + likely)
        values.append(to_fp16(piece[likely]).astype(np.float32))
        first += len(piece)
    found, logits = np.concatenate(tokens), np.concatenate(values)
    order = np.argsort(-logits, kind="stable")[:count]
    return tuple(Candidate(int(found[i]), float(logits[i])) for i in order)


def _likely(piece: VocabularySlice, count: int) -> NDArray[np.intp]:
    """Return ascending indices that include those of the `count` largest logits of a slice."""
    whole = len(piece) // CHUNK * CHUNK
    if whole // CHUNK <= count:
        return np.arange(len(piece))
    maxima = piece[:whole].reshape(-1, CHUNK).max(axis=1)
    limit = to_fp16(np.partition(maxima, len(maxima) - count)[len(maxima) - count][None])[0]
    # `count` maxima round to the limit or more. A logit that does not exceed the next smaller fp16 rounds to
    # less, so it is not among the largest.
    return np.flatnonzero(~(piece <= np.nextafter(limit, np.float16(-np.inf)).astype(piece.dtype)))
