"""Estimate the current cost of passes from the recent passes of each width.

Costs that were measured on a busy machine would stay wrong, and costs that were measured on an idle machine
are wrong while it is busy. So the engine reports the time of each pass, and the estimate follows.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from anespec.runtime.speculation.pass_costs import PassCosts, WidthCost

RECENT_PASSES = 9
"""The last passes of a width that count. If a machine becomes slower, the estimate has followed after so
many."""

MIN_PASSES = 3
"""Passes of a width before its times count, so that a single disturbed pass never does."""

STALE_PASSES = 64
"""Passes of other widths after which a width's earlier times are outdated."""

FIRST_TRIAL_PASSES, MAX_TRIAL_PASSES = 32, 1024
"""Passes after which a width is tried again, at first and at most; the number doubles with each trial. A
trial is MIN_PASSES passes, so all trials together take little time."""


@dataclass
class _Width:
    """The estimate of one width. After its last pass, number `last`, the factors of all widths were
    `all_factors`. `interval` is the number of passes between trials."""

    all_factors: Mapping[int, float]
    last: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_PASSES))
    next_trial: int = FIRST_TRIAL_PASSES
    interval: int = FIRST_TRIAL_PASSES


class RunningCosts:
    """A CostModel that begins with the recorded costs and learns from passes.

    A width's estimate is the second smallest of its recent times; the smallest could be a single wrong
    measurement. If other widths ran since, its cost is taken to have changed by the same factor as the cost
    of the last pass's width.
    """

    def __init__(self, recorded: PassCosts) -> None:
        """Begin with the recorded costs of every width that will be run."""
        self._recorded = recorded
        # Each width's cost at its last pass, relative to the recorded one. The mapping is replaced, never
        # changed.
        self._found: Mapping[int, float] = {cost.width: 1.0 for cost in recorded.widths}
        self._widths = {width: _Width(self._found) for width in self._found}
        self._passes = 0
        self._latest: int | None = None
        self._factors = tuple(self._found.values())
        self._current = recorded.smoothed()
        self._best: PassCosts | None = None

    @property
    def current(self) -> PassCosts:
        """The current costs of passes, smoothed (see PassCosts.smoothed)."""
        return self._current

    @property
    def learned(self) -> PassCosts | None:
        """The costs to record: those of the fastest time of this process; None before enough passes.

        Some widths may cost more than recorded, but not all together. If the total is higher, the machine was
        busy all the time; then the costs are scaled to the recorded total, since they serve to compare
        widths.
        """
        if self._best is None:
            return None
        return _scaled(self._best, min(1.0, _total(self._recorded) / _total(self._best)))

    def observe(self, width: int, span: int, seconds: float) -> None:
        """Learn from a pass; see CostModel."""
        own = self._widths.get(width)
        if own is None or seconds <= 0:
            return
        self._passes += 1
        factor = self._factor(width)
        if self._passes - own.last > STALE_PASSES:
            own.recent.clear()
        own.recent.append(seconds / self._recorded.seconds(width, span))
        if len(own.recent) >= MIN_PASSES:
            factor = sorted(own.recent)[1]
        if factor != self._found[width]:
            self._found = {**self._found, width: factor}
        own.all_factors, own.last = self._found, self._passes
        self._latest = width
        self._plan_trial(own)
        self._estimate()
        if self._passes >= FIRST_TRIAL_PASSES and (
            self._best is None or _total(self._current) < _total(self._best)
        ):
            self._best = replace(self._current, pace=1.0)

    def overdue(self, width: int) -> bool:
        """Return whether a width should be run to update its cost; see CostModel."""
        own = self._widths.get(width)
        return own is not None and self._passes >= own.next_trial

    def _plan_trial(self, own: _Width) -> None:
        """Postpone a width's next trial if enough recent passes are known."""
        if len(own.recent) >= MIN_PASSES:
            if self._passes >= own.next_trial:
                own.interval = min(2 * own.interval, MAX_TRIAL_PASSES)
            own.next_trial = self._passes + own.interval

    def _factor(self, width: int) -> float:
        """Return the current cost of a width, relative to the recorded one."""
        if self._latest is None or width == self._latest:
            return self._found[width]
        return self._found[width] * self._found[self._latest] / self._widths[width].all_factors[self._latest]

    def _estimate(self) -> None:
        """Update the current costs. This runs after each pass, and most passes change nothing."""
        factors = tuple(self._factor(width) for width in self._found)
        pace = 1.0 if self._latest is None else self._found[self._latest]
        if (factors, pace) == (self._factors, self._current.pace):
            return
        self._factors = factors
        widths = tuple(
            WidthCost(cost.width, cost.seconds * factor, cost.per_slot * factor)
            for cost, factor in zip(self._recorded.widths, factors, strict=True)
        )
        self._current = PassCosts(widths, self._recorded.change * pace, pace).smoothed()


def _total(costs: PassCosts) -> float:
    return sum(cost.seconds for cost in costs.widths)


def _scaled(costs: PassCosts, factor: float) -> PassCosts:
    widths = (
        replace(cost, seconds=cost.seconds * factor, per_slot=cost.per_slot * factor) for cost in costs.widths
    )
    return PassCosts(tuple(widths), costs.change * factor)
