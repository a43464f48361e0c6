"""The current cost of passes: the fastest recent passes of each width, corrected by every pass that runs.

Costs that were timed on a busy machine would be wrong for good, and costs that were timed on an idle one are
wrong while it is busy. So the engine reports the time of each pass, and the estimate follows.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from anespec.runtime.speculation.pass_costs import PassCosts, WidthCost

RECENT = 9
"""Passes of a width that count: on a machine that became slower, so many later all are slow."""

ENOUGH = 3
"""Passes of a width before they count, so that one that was disturbed never does."""

STALE = 64
"""Passes of other widths after which earlier times of a width are outdated."""

FIRST_TRIAL, RAREST_TRIAL = 32, 1024
"""Passes after which a width that others are compared with is run again, each time twice as many. A trial is
ENOUGH passes, so that all trials together take little time."""


@dataclass
class _Width:
    """The estimate of one width. After its last pass, number `last`, the factors of all widths were
    `beside`."""

    beside: Mapping[int, float]
    last: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    next_trial: int = FIRST_TRIAL
    patience: int = FIRST_TRIAL


class RunningCosts:
    """Implements CostModel: begins with what was recorded, and learns from passes.

    A width's estimate is the second least of its recent passes: the least would be a single mistake's. Where
    others ran since, it is taken to have become as much dearer or cheaper as the width of the last pass has.
    """

    def __init__(self, recorded: PassCosts) -> None:
        """Begin with costs of every width that will be run."""
        self._recorded = recorded
        # What each width took when it ran last, in times of what was recorded; replaced, never changed.
        self._found: Mapping[int, float] = {cost.width: 1.0 for cost in recorded.widths}
        self._widths = {width: _Width(self._found) for width in self._found}
        self._passes = 0
        self._latest: int | None = None
        self._factors = tuple(self._found.values())
        self._current = recorded.smoothed()
        self._best: PassCosts | None = None

    @property
    def current(self) -> PassCosts:
        """The current costs of passes; a wider pass never costs less than a narrower one, see
        PassCosts.smoothed."""
        return self._current

    @property
    def learned(self) -> PassCosts | None:
        """The costs to record: the curve of the fastest time.

        None before enough passes. It may be higher than the recorded one for some widths, but not for all
        together: in that case the machine was busy throughout, and costs are for comparing widths.
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
        if self._passes - own.last > STALE:
            own.recent.clear()
        own.recent.append(seconds / self._recorded.seconds(width, span))
        if len(own.recent) >= ENOUGH:
            factor = sorted(own.recent)[1]
        if factor != self._found[width]:
            self._found = {**self._found, width: factor}
        own.beside, own.last = self._found, self._passes
        self._latest = width
        self._plan_trial(own)
        self._estimate()
        if self._passes >= FIRST_TRIAL and (self._best is None or _total(self._current) < _total(self._best)):
            self._best = replace(self._current, pace=1.0)

    def overdue(self, width: int) -> bool:
        """Return whether a width should be run to update its cost; see CostModel."""
        own = self._widths.get(width)
        return own is not None and self._passes >= own.next_trial

    def _plan_trial(self, own: _Width) -> None:
        """Put a width's next trial off, where enough of its recent passes are known."""
        if len(own.recent) >= ENOUGH:
            if self._passes >= own.next_trial:
                own.patience = min(2 * own.patience, RAREST_TRIAL)
            own.next_trial = self._passes + own.patience

    def _factor(self, width: int) -> float:
        """Return the current cost of a width, relative to the recorded one."""
        if self._latest is None or width == self._latest:
            return self._found[width]
        return self._found[width] * self._found[self._latest] / self._widths[width].beside[self._latest]

    def _estimate(self) -> None:
        """Bring the curve up to date. Most passes change nothing, and this runs after each of them."""
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
