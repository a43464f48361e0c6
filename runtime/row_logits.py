"""What a pass is asked about a row's logits, found in them."""

import numpy as np

from anespec.runtime.passes import Candidate, Logits, Need, RowLogits


def row_logits(logits: Logits, need: Need) -> RowLogits:
    """What is needed of a row's logits [vocabulary]."""
    return RowLogits(
        logits=logits if need.logits else None,
        best=_candidate(logits, best_token(logits)) if need.best else None,
        top=tuple(_candidate(logits, token) for token in _largest(logits, need.top)) if need.top else (),
        chosen=tuple(float(logits[token]) for token in need.chosen),
    )


def best_token(logits: Logits) -> int:
    """The index of the largest logit, the lowest on ties.

    The bits of fp16 numbers order like integers, those of negative ones backwards, and numpy compares
    integers 400 times faster.
    """
    bits = logits.view(np.int16)
    best = int(bits.argmax())
    if bits[best] < 0:
        best = int(bits.argmin())
    elif bits[best] == 0:
        best = int(logits.argmax())  # 0 and -0 tie
    return best


def _candidate(logits: Logits, token: int) -> Candidate:
    return Candidate(token, float(logits[token]))


def _largest(logits: Logits, count: int) -> list[int]:
    """The ids of the `count` largest logits, largest first, the lower id first on ties."""
    values = logits.astype(np.float32)
    count = min(count, len(values))
    limit = np.partition(values, len(values) - count)[len(values) - count]
    ids = np.flatnonzero(values >= limit)
    return [int(token) for token in ids[np.argsort(-values[ids], kind="stable")[:count]]]
