"""Compares greedy ids with another engine's as far as both are sure of them."""

from collections.abc import Sequence

import numpy as np

CLOSE = 0.03
"""Where the best two logits are nearer than this, processors and engines may choose differently: llama.cpp's
own logits of the tiny models differ from transformers' by up to this."""


def margins_of(logits: np.ndarray) -> list[float]:
    """How far the best logit of each row is above the next."""
    best = np.sort(logits.astype(np.float64), axis=-1)[:, -2:]
    return [float(margin) for margin in best[:, 1] - best[:, 0]]


def equal_while_sure(
    found: Sequence[int],
    logits: np.ndarray,
    expected: Sequence[int],
    margins: Sequence[float] = (),
    close: float = CLOSE,
) -> int:
    """Assert that ids are equal before the first close call of both engines; return how many these are.

    `logits` [ids, vocabulary] are those that `found` were chosen from, and `margins` the other engine's, if
    it has said them. An id that both choose by less than `close` is not compared, nor is any after it.
    """
    mine = margins_of(logits[: len(found)])
    theirs = [*margins, *mine[len(margins) :]]
    sure = next((i for i, pair in enumerate(zip(mine, theirs, strict=False)) if max(pair) < close), len(mine))
    count = min(sure, len(expected))
    assert list(found[:count]) == list(expected[:count])
    return count
