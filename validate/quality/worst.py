"""The tokens of a text on which the artifact and the reference disagreed most, in words."""

import math
from collections.abc import Sequence

import numpy as np

from anespec.runtime.text.tokenizer import Tokenizer
from anespec.validate.quality.divergence import Divergence
from anespec.validate.quality.scoring import Window
from anespec.validate.quality.verdict import Opinion, WorstToken

MOST_TOKENS = 10
TOKENS_BEFORE = 12
LONGEST_TEXT = 200
"""Characters of a token, or of what stands before it; few tokens have as many."""


def worst_tokens(
    tokenizer: Tokenizer, windows: Sequence[Window], scored: Divergence
) -> tuple[WorstToken, ...]:
    """The tokens with the largest KL divergence, the largest first, of all that were scored in `windows`."""
    targets = [(window, place) for window in windows for place in range(1, len(window.ids))]
    # Where divergences are equal the earlier token comes first.
    worst = np.argsort(-scored.kl, kind="stable")[:MOST_TOKENS]
    return tuple(_worst_token(tokenizer, targets[number], scored, number) for number in worst.tolist())


def _worst_token(
    tokenizer: Tokenizer, target: tuple[Window, int], scored: Divergence, number: int
) -> WorstToken:
    window, place = target
    of_reference = (scored.reference_top_nll[number], scored.reference_nll[number])
    of_artifact = (scored.artifact_top_nll[number], scored.artifact_nll[number])
    return WorstToken(
        number=number,
        before=_text(tokenizer, window.ids[max(0, place - TOKENS_BEFORE) : place])[-LONGEST_TEXT:],
        token=_text(tokenizer, window.ids[place : place + 1])[:LONGEST_TEXT],
        kl=float(scored.kl[number]),
        reference=_opinion(_text(tokenizer, [int(scored.reference_top[number])]), *of_reference),
        artifact=_opinion(_text(tokenizer, [int(scored.artifact_top[number])]), *of_artifact),
    )


def _opinion(top: str, top_nll: float, token_nll: float) -> Opinion:
    return Opinion(
        top=top[:LONGEST_TEXT],
        top_probability=min(1.0, math.exp(-top_nll)),
        token_probability=min(1.0, math.exp(-token_nll)),
    )


def _text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return tokenizer.decode(ids, skip_special=False, continues=True)
