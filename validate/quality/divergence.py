"""Compare two models' predictions of the same tokens, with one number per token and measure."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TOP_TOKENS = 5
"""The number of likeliest tokens that are compared."""

ROWS_AT_ONCE = 16
"""The rows that are widened to float64 at a time, which bounds the memory."""

Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]
AnyFloats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Divergence:
    """One entry per scored token; information in nats.

    `kl` is the Kullback-Leibler divergence from the reference to the artifact. Each `nll` is minus the
    logarithm of the probability of the text's token. `same_top` says whether both have the same likeliest
    token. `shared_top` counts the tokens among the artifact's five likeliest that are also among the
    reference's. Each `top` is the likeliest token, and its `top_nll` minus the logarithm of its probability.
    """

    kl: Numbers
    reference_nll: Numbers
    artifact_nll: Numbers
    same_top: NDArray[np.bool_]
    shared_top: Counts
    reference_top: Counts
    reference_top_nll: Numbers
    artifact_top: Counts
    artifact_top_nll: Numbers
    not_finite: int

    @classmethod
    def joined(cls, parts: "list[Divergence]") -> "Divergence":
        """Return all tokens of several parts, of which there is at least one."""
        return cls(
            kl=np.concatenate([part.kl for part in parts]),
            reference_nll=np.concatenate([part.reference_nll for part in parts]),
            artifact_nll=np.concatenate([part.artifact_nll for part in parts]),
            same_top=np.concatenate([part.same_top for part in parts]),
            shared_top=np.concatenate([part.shared_top for part in parts]),
            reference_top=np.concatenate([part.reference_top for part in parts]),
            reference_top_nll=np.concatenate([part.reference_top_nll for part in parts]),
            artifact_top=np.concatenate([part.artifact_top for part in parts]),
            artifact_top_nll=np.concatenate([part.artifact_top_nll for part in parts]),
            not_finite=sum(part.not_finite for part in parts),
        )


def diverge(reference: AnyFloats, artifact: AnyFloats, targets: Counts) -> Divergence:
    """Compare logits [rows, vocabulary] row by row; `targets[i]` is the token that follows row i.

    Values that are not finite in the artifact's logits are counted and taken as zero.
    """
    starts = range(0, len(targets), ROWS_AT_ONCE)
    return Divergence.joined(
        [
            _diverge(
                reference[start : start + ROWS_AT_ONCE],
                artifact[start : start + ROWS_AT_ONCE],
                targets[start : start + ROWS_AT_ONCE],
            )
            for start in starts
        ]
    )


def log_softmax(logits: AnyFloats) -> Numbers:
    """Return the logarithms of the probabilities along the last axis, in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide


def _diverge(reference: AnyFloats, artifact: AnyFloats, targets: Counts) -> Divergence:
    finite = np.isfinite(artifact)
    expected, found = log_softmax(reference), log_softmax(np.where(finite, artifact, 0))
    lanes = np.arange(len(targets))
    # The divergence is never negative; its rounding may be.
    kl = (np.exp(expected) * (expected - found)).sum(axis=-1).clip(min=0)
    reference_top, artifact_top = expected.argmax(axis=-1), found.argmax(axis=-1)
    return Divergence(
        kl=kl,
        reference_nll=-expected[lanes, targets],
        artifact_nll=-found[lanes, targets],
        same_top=reference_top == artifact_top,
        shared_top=(_likeliest(expected)[:, :, None] == _likeliest(found)[:, None, :]).sum(axis=(1, 2)),
        reference_top=reference_top,
        reference_top_nll=-expected[lanes, reference_top],
        artifact_top=artifact_top,
        artifact_top_nll=-found[lanes, artifact_top],
        not_finite=int((~finite).sum()),
    )


def _likeliest(logarithms: Numbers) -> NDArray[np.intp]:
    count = min(TOP_TOKENS, logarithms.shape[-1])
    return np.argpartition(logarithms, -count, axis=-1)[:, -count:]
