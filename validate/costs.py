"""The costs of passes on this machine, stored with the verdicts."""

from collections.abc import Callable
from time import perf_counter
from typing import Self

from pydantic import Field

from anespec.manifests.schema import Count, Record
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import RunEnvironment, Verdict, VerdictFile
from anespec.runtime.passes import Verifier
from anespec.runtime.proven import Proven
from anespec.runtime.speculation.cost_measurement import measure_pass_costs
from anespec.runtime.speculation.pass_costs import PassCosts, WidthCost
from anespec.system.errors import StorageError
from anespec.system.progress import Progress


class WidthFigure(Record):
    """Seconds of a pass of so many rows that looks at no slots, and what each slot of the first pool adds."""

    width: Count
    seconds: float = Field(gt=0, le=86400)
    per_slot: float = Field(ge=0, le=1)


class CostVerdict(Verdict):
    """The cost of every width that was proven then, and the seconds that another width than the last takes
    more."""

    widths: tuple[WidthFigure, ...] = Field(min_length=1)
    change: float = Field(default=0.0, ge=0, le=86400)

    @classmethod
    def of(cls, costs: PassCosts, here: RunEnvironment) -> Self:
        """Return the measured costs."""
        figures = [
            WidthFigure(width=cost.width, seconds=max(cost.seconds, 1e-9), per_slot=cost.per_slot)
            for cost in costs.widths
        ]
        return cls(circumstances=here, widths=tuple(figures), change=costs.change)

    @property
    def costs(self) -> PassCosts:
        """As the planner takes them."""
        widths = [WidthCost(each.width, each.seconds, each.per_slot) for each in self.widths]
        return PassCosts.of(widths, self.change)


class CostFile(VerdictFile[CostVerdict]):
    """gates/costs.json."""

    gate = "costs"


def kept_costs(artifact: Artifact, here: RunEnvironment, proven: Proven) -> PassCosts | None:
    """What was measured of all widths that are proven; None where that was not done here."""
    verdict = artifact.read_verdicts(CostFile).find(here)
    if verdict is None or not {*proven.widths} <= {each.width for each in verdict.widths}:
        return None
    return verdict.costs


def recorded_costs(
    artifact: Artifact,
    verifier: Verifier,
    here: RunEnvironment,
    proven: Proven,
    progress: Progress,
    unkept: Callable[[StorageError], None],
    clock: Callable[[], float] = perf_counter,
) -> PassCosts:
    """Time passes of every width and keep the figures; `unkept` is told where they cannot be written."""
    costs = measure_pass_costs(verifier, proven, lambda done, of: progress("passes", done / of), clock)
    try:
        artifact.record_verdict(CostFile, CostVerdict.of(costs, here))
    except StorageError as error:
        unkept(error)
    return costs


CHANGED = 0.1
"""Of a width's cost: what was learned is not written for less."""


def keep_learned(artifact: Artifact, here: RunEnvironment, learned: PassCosts | None) -> bool:
    """Put what use has taught in place of what is recorded; whether it said something else.

    For a quiet moment: it reads and writes a file, as one step.

    Raises:
        StorageError: it cannot be written.
    """
    known = artifact.read_verdicts(CostFile).find(here)
    if learned is None or (known is not None and not _differ(known.costs, learned)):
        return False
    artifact.record_verdict(CostFile, CostVerdict.of(learned, here))
    return True


def _differ(known: PassCosts, learned: PassCosts) -> bool:
    before = {cost.width: cost.seconds for cost in known.widths}
    return before.keys() <= {cost.width for cost in learned.widths} and any(
        abs(cost.seconds - before.get(cost.width, 0.0)) > CHANGED * cost.seconds for cost in learned.widths
    )
