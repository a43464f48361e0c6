"""Measure the costs of passes on this machine, and store them with the verdicts."""

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
    """The seconds of a pass of `width` rows that reads no slots, and the seconds that a slot adds.

    `per_slot` is the time for each slot of the first pool that the pass reads.
    """

    width: Count
    seconds: float = Field(gt=0, le=86400)
    per_slot: float = Field(ge=0, le=1)


class CostVerdict(Verdict):
    """The costs of all widths that were proven when it was measured.

    `change` is how many seconds more a pass takes if its width is not that of the pass before.
    """

    widths: tuple[WidthFigure, ...] = Field(min_length=1)
    change: float = Field(default=0.0, ge=0, le=86400)

    @classmethod
    def of(cls, costs: PassCosts, here: RunEnvironment) -> Self:
        """Return a verdict of measured costs."""
        figures = [
            WidthFigure(width=cost.width, seconds=max(cost.seconds, 1e-9), per_slot=cost.per_slot)
            for cost in costs.widths
        ]
        return cls(circumstances=here, widths=tuple(figures), change=costs.change)

    @property
    def costs(self) -> PassCosts:
        """Return the costs as the planner takes them."""
        widths = [WidthCost(each.width, each.seconds, each.per_slot) for each in self.widths]
        return PassCosts.of(widths, self.change)


class CostFile(VerdictFile[CostVerdict]):
    """gates/costs.json."""

    gate = "costs"


def kept_costs(artifact: Artifact, here: RunEnvironment, proven: Proven) -> PassCosts | None:
    """Return the recorded costs; None unless they were measured here for all proven widths."""
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
    """Time passes of every width and record the costs.

    `unkept` is called with the error if the costs cannot be written.
    """
    costs = measure_pass_costs(verifier, proven, lambda done, of: progress("passes", done / of), clock)
    try:
        artifact.record_verdict(CostFile, CostVerdict.of(costs, here))
    except StorageError as error:
        unkept(error)
    return costs


MIN_CHANGE = 0.1
"""The smallest change for which learned costs are written, as a share of a width's cost."""


def keep_learned(artifact: Artifact, here: RunEnvironment, learned: PassCosts | None) -> bool:
    """Record the costs that were learned in use, if they differ; return whether they were written.

    This reads and writes a file as one step; call it while nothing is generated.

    Raises:
        StorageError: the file cannot be written.
    """
    known = artifact.read_verdicts(CostFile).find(here)
    if learned is None or (known is not None and not _differ(known.costs, learned)):
        return False
    artifact.record_verdict(CostFile, CostVerdict.of(learned, here))
    return True


def _differ(known: PassCosts, learned: PassCosts) -> bool:
    before = {cost.width: cost.seconds for cost in known.widths}
    return before.keys() <= {cost.width for cost in learned.widths} and any(
        abs(cost.seconds - before.get(cost.width, 0.0)) > MIN_CHANGE * cost.seconds for cost in learned.widths
    )
