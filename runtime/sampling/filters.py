"""The filters that select the candidate tokens, and the choice of one.

A filter works on the result of the previous one. At first that is the whole row, of which only the likeliest
few hundred tokens are looked at: how much the rest weighs is bounded, and summed up only where a result
depends on it. The result is the same either way, and where one token is likely, which is where drafts come
true and many rows are sampled, the rest hardly ever matters.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from anespec.runtime.sampling.parameters import SamplingParameters
from anespec.runtime.sampling.ranking import HEAD, Candidates, Float64, LogitRow, Rest, TokenIds, Values

_LEAST_TEMPERATURE = 1e-6


@dataclass(frozen=True)
class RemainingTokens:
    """The remaining tokens of a row: `candidates`, and with `rest` also all less likely tokens."""

    row: LogitRow
    candidates: Candidates
    rest: bool = False

    @classmethod
    def whole(cls, row: LogitRow) -> "RemainingTokens":
        """All tokens."""
        return cls(row, row.head, rest=len(row.head) == HEAD)

    def only(self, candidates: Candidates) -> "RemainingTokens":
        """These candidates and nothing else."""
        return RemainingTokens(self.row, candidates)


def filtered(row: LogitRow, parameters: SamplingParameters) -> RemainingTokens:
    """Apply top_k, typical_p, top_p and min_p to a row."""
    kept = RemainingTokens.whole(row)
    if parameters.top_k:
        kept = kept.only(row.largest(parameters.top_k))
    if parameters.typical_p < 1.0:
        kept = typical(kept, parameters.typical_p)
    if parameters.top_p < 1.0:
        kept = nucleus(kept, parameters.top_p)
    if parameters.min_p > 0.0:
        kept = likely(kept, parameters.min_p)
    return kept


def nucleus(kept: RemainingTokens, share: float) -> RemainingTokens:
    """The fewest of the likeliest tokens whose probabilities reach `share` of what is left."""
    candidates = kept.candidates
    last, _ = _locate(kept, _weights(candidates, 1.0), share, 1.0, "left")
    if last < len(candidates) or not kept.rest:
        return kept.only(candidates.first(last + 1))
    values = kept.row.by_value()
    drops = kept.row.highest - values.logits
    return _fewest(kept.row, values, np.argsort(drops, kind="stable"), drops, share)


def likely(kept: RemainingTokens, share: float) -> RemainingTokens:
    """The tokens at least `share` times as likely as the likeliest."""
    logits = kept.candidates.logits
    limit = float(logits[0]) + math.log(share)
    if kept.rest:
        return kept.only(kept.row.at_least(limit))
    return kept.only(kept.candidates.first(int(np.searchsorted(-logits, -limit, side="right"))))


def typical(kept: RemainingTokens, share: float) -> RemainingTokens:
    """The fewest tokens that reach `share`, those first whose information is nearest to the entropy.

    A token of logit x has log(mass) - x nats, and the entropy is log(mass) less the mean logit: so nearest
    is whose logit is nearest to the mean. Of equals the likelier comes first, then the lower id.
    """
    drops, weights = _drops(kept.candidates), _weights(kept.candidates, 1.0)
    mass, moment = float(weights.sum()), float((weights * drops).sum())
    if not kept.rest:
        return kept.only(kept.candidates.take(_nearest(drops, weights, moment / mass, share * mass)))
    more_mass = kept.row.bound_mass(kept.candidates, 1.0)
    if share * (mass + more_mass) < mass:
        more_moment = kept.row.bound_moment(kept.candidates)
        # Which of two tokens is nearer changes once as the mean moves: what is equal at both ends holds
        # between.
        low = _nearest(drops, weights, moment / (mass + more_mass), share * mass)
        mean = (moment + more_moment) / mass
        high = _nearest(drops, weights, mean, share * (mass + more_mass))
        if np.array_equal(low, high) and _is_inside(drops, high, mean):
            return kept.only(kept.candidates.take(high))
    values = kept.row.by_value()
    drops = kept.row.highest - values.logits
    weights = np.exp(-drops) * values.counts
    mean = float((weights * drops).sum() / weights.sum())
    return _fewest(kept.row, values, np.argsort(np.abs(drops - mean), kind="stable"), drops, share)


def pick(kept: RemainingTokens, temperature: float, uniform: float) -> int:
    """The token where the running sum of probabilities exceeds `uniform`, the likeliest first."""
    temperature = max(temperature, _LEAST_TEMPERATURE)
    weights = _weights(kept.candidates, temperature)
    index, rest = _locate(kept, weights, uniform, temperature, "right")
    if index < len(weights):
        return int(kept.candidates.ids[index])
    if rest is None or rest.mass == 0.0:
        return int(kept.candidates.ids[np.flatnonzero(weights)[-1]])
    before = float(weights.sum())
    return rest.pick(max(0.0, (uniform * (before + rest.mass) - before) / rest.mass))


def _locate(
    kept: RemainingTokens, weights: Float64, share: float, temperature: float, side: Literal["left", "right"]
) -> tuple[int, Rest | None]:
    """The first candidate where the running sum of weights reaches `share` of all that is kept.

    One past the last where the rest is needed to reach it, which is then returned too. "left": where the sum
    is equal or more; "right": where it is more.
    """
    sums = np.cumsum(weights)

    def place(rest_mass: float) -> int:
        return int(np.searchsorted(sums, share * (sums[-1] + rest_mass), side=side))

    low = place(0.0)
    if not kept.rest:
        return low, None
    if low < len(weights) and low == place(kept.row.bound_mass(kept.candidates, temperature)):
        return low, None
    rest = kept.row.rest(kept.candidates, temperature)
    return place(rest.mass), rest


def _fewest(row: LogitRow, values: Values, order: TokenIds, drops: Float64, share: float) -> RemainingTokens:
    """The fewest tokens that reach `share`, in the order of their values; of equals the lower ids first."""
    sums = np.cumsum((np.exp(-drops) * values.counts)[order])
    target = share * float(sums[-1])
    end = min(int(np.searchsorted(sums, target)), len(order) - 1)
    last = int(order[end])
    before = float(sums[end - 1]) if end else 0.0
    count = math.ceil((target - before) / math.exp(-float(drops[last])))
    row.keep(values, order[:end], last, max(1, count))
    return RemainingTokens.whole(row)


def _weights(candidates: Candidates, temperature: float) -> Float64:
    """exp(logit / temperature), the largest being 1."""
    weights: Float64 = np.exp(_drops(candidates) / -temperature)
    return weights


def _drops(candidates: Candidates) -> Float64:
    """Return how far logits are below the largest."""
    drops: Float64 = candidates.logits[0] - candidates.logits
    return drops


def _nearest(drops: Float64, weights: Float64, mean: float, target: float) -> TokenIds:
    """The fewest indices whose weights reach `target`, the nearest to `mean` first; all if they do not."""
    order = np.argsort(np.abs(drops - mean), kind="stable")
    return order[: int(np.searchsorted(np.cumsum(weights[order]), target)) + 1]


def _is_inside(drops: Float64, chosen: TokenIds, mean: float) -> bool:
    """Whether what was chosen is nearer to the mean than anything that drops further than all of `drops`."""
    return float(np.abs(drops[chosen] - mean).max()) < float(drops[-1]) - mean
