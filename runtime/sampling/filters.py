"""Filter the tokens of a row (top_k, typical_p, top_p, min_p), and pick one.

A filter works on the result of the previous one, the first on the whole row. But only the likeliest few
hundred tokens are examined at first. The mass of the other tokens is bounded from above, and computed only if
the result depends on it; the result is the same either way. If one token is likely, the other tokens hardly
ever matter, and in such rows drafts are right, so many of them are sampled.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from anespec.runtime.sampling.parameters import SamplingParameters
from anespec.runtime.sampling.ranking import HEAD, Candidates, Float64, LogitRow, Rest, TokenIds, Values

_MIN_TEMPERATURE = 1e-6


@dataclass(frozen=True)
class RemainingTokens:
    """The tokens of a row that filters have left: `candidates`, and with `rest` also all less likely
    tokens."""

    row: LogitRow
    candidates: Candidates
    rest: bool = False

    @classmethod
    def whole(cls, row: LogitRow) -> "RemainingTokens":
        """Return all tokens of a row."""
        return cls(row, row.head, rest=len(row.head) == HEAD)

    def only(self, candidates: Candidates) -> "RemainingTokens":
        """Return these candidates alone."""
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
    """Return the fewest of the likeliest tokens whose probabilities reach `share` of all remaining ones
    (top_p)."""
    candidates = kept.candidates
    last, _ = _locate(kept, _weights(candidates, 1.0), share, 1.0, "left")
    if last < len(candidates) or not kept.rest:
        return kept.only(candidates.first(last + 1))
    values = kept.row.by_value()
    drops = kept.row.highest - values.logits
    return _fewest(kept.row, values, np.argsort(drops, kind="stable"), drops, share)


def likely(kept: RemainingTokens, share: float) -> RemainingTokens:
    """Return the tokens at least `share` times as likely as the likeliest one (min_p)."""
    logits = kept.candidates.logits
    limit = float(logits[0]) + math.log(share)
    if kept.rest:
        return kept.only(kept.row.at_least(limit))
    return kept.only(kept.candidates.first(int(np.searchsorted(-logits, -limit, side="right"))))


def typical(kept: RemainingTokens, share: float) -> RemainingTokens:
    """Return the fewest tokens that reach `share`, those with information nearest to the entropy first
    (typical_p).

    A token with logit x has an information of log(mass) - x nats, and the entropy is log(mass) less the mean
    logit. So the nearest token is the one whose logit is nearest to the mean. Among equals the likelier token
    comes first, then the lower id.
    """
    drops, weights = _drops(kept.candidates), _weights(kept.candidates, 1.0)
    mass, moment = float(weights.sum()), float((weights * drops).sum())
    if not kept.rest:
        return kept.only(kept.candidates.take(_nearest(drops, weights, moment / mass, share * mass)))
    more_mass = kept.row.bound_mass(kept.candidates, 1.0)
    if share * (mass + more_mass) < mass:
        more_moment = kept.row.bound_moment(kept.candidates)
        # As the mean moves, the order of two tokens by distance changes at most once. So a result that is
        # equal at both bounds of the mean holds for every mean between them.
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
    """Return the token at which the running sum of probabilities, likeliest first, exceeds `uniform`."""
    temperature = max(temperature, _MIN_TEMPERATURE)
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
    """Return the first candidate at which the running sum of weights reaches `share` of all remaining tokens.

    If only the rest reaches it, return the number of candidates, and the rest. With "left" the sum reaches
    the share if it is equal or more, with "right" only if it is more.
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
    """Return the fewest tokens that reach `share`, in the `order` of their values, then by lower ids."""
    sums = np.cumsum((np.exp(-drops) * values.counts)[order])
    target = share * float(sums[-1])
    end = min(int(np.searchsorted(sums, target)), len(order) - 1)
    last = int(order[end])
    before = float(sums[end - 1]) if end else 0.0
    count = math.ceil((target - before) / math.exp(-float(drops[last])))
    row.keep(values, order[:end], last, max(1, count))
    return RemainingTokens.whole(row)


def _weights(candidates: Candidates, temperature: float) -> Float64:
    """Return exp(logit / temperature), scaled so that the largest is 1."""
    weights: Float64 = np.exp(_drops(candidates) / -temperature)
    return weights


def _drops(candidates: Candidates) -> Float64:
    """Return the distance of each logit to the largest one."""
    drops: Float64 = candidates.logits[0] - candidates.logits
    return drops


def _nearest(drops: Float64, weights: Float64, mean: float, target: float) -> TokenIds:
    """Return the fewest indices whose weights reach `target`, nearest to `mean` first; all if none do."""
    order = np.argsort(np.abs(drops - mean), kind="stable")
    return order[: int(np.searchsorted(np.cumsum(weights[order]), target)) + 1]


def _is_inside(drops: Float64, chosen: TokenIds, mean: float) -> bool:
    """Return whether all chosen tokens are nearer to the mean than any token below the last candidate."""
    return float(np.abs(drops[chosen] - mean).max()) < float(drops[-1]) - mean
