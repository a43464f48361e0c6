"""The best token of each slice of the vocabulary, found in the program.

Core ML's reduce_argmax promises nothing on ties, which fp16 logits have often, and its numbers are int32. So
the lowest of equal tokens is found by formula, with fp16 numbers alone: the largest logit, the least first
digit of the tokens that have it, and the least second digit of those (see schema.BestHead). Digits are
counted from above, so that a product with 0 leaves out every other token.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from anespec.convert.graph.builder import Var, mb
from anespec.manifests.channel_layout import CHANNELS_AXIS, from_rows
from anespec.manifests.schema import BEST_DIGIT, BEST_FIRST, LARGEST_FACTOR


def best_tokens(slices: Sequence[Var]) -> Var:
    """Slices of logits, each a channel tensor, to the channels of schema.BestHead in the same layout."""
    digits = {tokens: _digits(tokens) for tokens in dict.fromkeys(map(_tokens, slices))}
    found = [part for logits in slices for part in _best(logits, *digits[_tokens(logits)])]
    return mb.concat(values=found, axis=CHANNELS_AXIS)


def _tokens(logits: Var) -> int:
    return int(logits.shape[CHANNELS_AXIS])


def _best(logits: Var, first_digits: Var, second_digits: Var) -> tuple[Var, Var, Var, Var]:
    largest = _over_tokens(mb.reduce_max, logits)
    firsts = mb.mul(x=_as_number(mb.equal(x=logits, y=largest)), y=first_digits)
    first = _over_tokens(mb.reduce_max, firsts)
    seconds = mb.mul(x=_as_number(mb.equal(x=firsts, y=first)), y=second_digits)
    second = _over_tokens(mb.reduce_max, seconds)
    # A largest number hides an infinity below it, and what is no number where that is left out of maxima.
    is_finite = mb.less_equal(x=mb.abs(x=logits), y=np.float16(LARGEST_FACTOR))
    return largest, first, second, _over_tokens(mb.reduce_min, _as_number(is_finite))


def _over_tokens(reduction: Callable[..., Var], x: Var) -> Var:
    return reduction(x=x, axes=[CHANNELS_AXIS], keep_dims=True)


def _as_number(truth: Var) -> Var:
    return mb.cast(x=truth, dtype="fp16")


def _digits(tokens: int) -> tuple[Var, Var]:
    """Both digits of each token's number in a slice of so many, from above, as channel tensors of one row."""
    first, second = np.divmod(np.arange(tokens), BEST_DIGIT)
    return _constant(BEST_FIRST - first), _constant(BEST_DIGIT - second)


def _constant(numbers: NDArray[np.int64]) -> Var:
    return mb.const(val=np.ascontiguousarray(from_rows(numbers[None].astype(np.float16))))
