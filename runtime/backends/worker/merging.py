"""Merge the workers' results for their slices of the vocabulary into those of the whole row (see
row_logits)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from anespec.runtime.passes import Candidate, Logits, Need, RowLogits


@dataclass(frozen=True)
class SliceRow:
    """One worker's result for one row; the logits of chosen tokens outside its slices are None."""

    best: Candidate | None
    top: tuple[Candidate, ...]
    chosen: tuple[float | None, ...]

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> Self:
        """One of a reply's rows; KeyError, TypeError or ValueError where it is none."""
        best = reply.get("best")
        return cls(
            best=None if best is None else _candidate(best),
            top=tuple(_candidate(found) for found in reply.get("top") or ()),
            chosen=tuple(None if bits is None else _logit(bits) for bits in reply.get("chosen") or ()),
        )


def merged(slices: Sequence[SliceRow], need: Need, logits: Logits | None) -> RowLogits:
    """Merge the results of all slices for one row, in the vocabulary's order.

    Raises:
        ValueError: a slice lacks what is needed, or nobody has a token that was chosen.
    """
    return RowLogits(
        logits=logits if need.logits else None,
        best=_best([row.best for row in slices]) if need.best else None,
        top=_top([candidate for row in slices for candidate in row.top], need.top),
        chosen=tuple(_only([row.chosen[index] for row in slices]) for index in range(len(need.chosen))),
    )


def _best(found: Sequence[Candidate | None]) -> Candidate:
    candidates = [candidate for candidate in found if candidate is not None]
    if len(candidates) < len(found) or not candidates:
        raise ValueError("a slice names no best token")
    strange = [candidate for candidate in candidates if not np.isfinite(candidate.logit)]
    return strange[0] if strange else max(candidates, key=lambda candidate: candidate.logit)


def _top(found: Sequence[Candidate], count: int) -> tuple[Candidate, ...]:
    """The largest, each slice's in order: so the sort leaves the lower token first on ties."""
    order = np.argsort([-candidate.logit for candidate in found], kind="stable")[:count]
    return tuple(found[index] for index in order)


def _only(logits: Sequence[float | None]) -> float:
    (logit,) = (logit for logit in logits if logit is not None)
    return logit


def _candidate(pair: Any) -> Candidate:
    token, bits = pair
    return Candidate(int(token), _logit(bits))


def _logit(bits: Any) -> float:
    return float(np.array(bits, np.uint16).view(np.float16))
