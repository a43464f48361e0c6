"""Make the engines of a suite: one for each way and number of drafts, all on the same verifier."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from anespec.runtime.drafters import (
    Draft,
    DraftCost,
    DraftSession,
    DraftSource,
    Outcome,
    TopKLogits,
    propose_each,
)
from anespec.runtime.drafters.mod import ModSource
from anespec.runtime.engine.engine import Engine
from anespec.runtime.passes import Verifier
from anespec.runtime.proven import Proven
from anespec.runtime.speculation.pass_costs import CostModel
from anespec.system.formatting import counted, quoted
from anespec.validate.bench.measure import Way, equal_costs, most_drafts, usual_drafts
from anespec.validate.bench.suites.schema import Baseline, Suite, Ways
from anespec.validate.bench.timed_source import BoundedSource

KnownTexts = dict[tuple[int, ...], tuple[int, ...]]
"""The texts that the verifier is known to write, by prompt."""

SourceOf = Callable[[Ways], "DraftSource | str"]
"""Opens the source of a way, or says why that is not possible here. The caller closes it."""


@dataclass
class _PerfectSession:
    """Proposes the rest of a known text."""

    rest: Sequence[int]
    wants_top: int = 0

    def propose(self, budget: int) -> Draft:
        """Return the next tokens."""
        tokens = tuple(self.rest[:budget])
        return Draft(tokens, (1.0,) * len(tokens), PerfectSource.name)

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
        """Skip what was committed."""
        self.rest = self.rest[len(committed) :]

    def close(self) -> None:
        """Do nothing: the session holds nothing."""


class PerfectSource:
    """A source whose drafts are the known texts: the most that drafting could bring."""

    name = "perfect"
    cost = DraftCost()

    def __init__(self, known: KnownTexts) -> None:
        """Draft from `known`, which may still grow."""
        self._known = known

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> _PerfectSession:
        """Open a session over the known text of the prompt."""
        return _PerfectSession(self._known.get(tuple(prompt), ()))

    def propose(self, asks: Sequence[tuple[DraftSession, int]]) -> list[Draft]:
        """Return the draft of each session."""
        return propose_each(asks)

    def close(self) -> None:
        """Do nothing: the source holds nothing of its own."""


@dataclass(frozen=True)
class Arm:
    """One way of a suite with its engine. `source` drafts for it; None for the baseline.

    Before each run the source learns the texts in `taught`.
    """

    way: Way
    engine: Engine
    source: DraftSource | None = None
    taught: tuple[tuple[int, ...], ...] = ()

    @property
    def table(self) -> ModSource | None:
        """Return the source if it has a table, whose use can be shown."""
        return self.source if isinstance(self.source, ModSource) else None


@dataclass
class Arms:
    """Makes the arms of a suite. `notes` says which ways are left out, and why.

    `repetition_filter` is for drafts as they pay (see Engine).
    """

    verifier: Verifier
    proven: Proven
    costs: CostModel
    source_of: SourceOf
    repetition_filter: float = 0.0
    known: KnownTexts = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def baseline(self, baseline: Baseline) -> Arm:
        """Return the arm without drafts; of all widths if there are no passes of the one it asks for."""
        proven = self._of_width(baseline.width)
        if proven is None:
            self.notes.append(
                f"{baseline.name} runs passes of {self._block} rows: {self._no_width(baseline)}"
            )
            proven = replace(self.proven, widths=(self._block,))
        return Arm(
            Way(0, name=baseline.name), Engine(self.verifier, proven, costs=equal_costs(proven.widths))
        )

    def of(self, suite: Suite) -> list[Arm]:
        """Return all other arms that can run here."""
        return [arm for ways in suite.ways for arm in self._of_ways(ways)]

    def _of_ways(self, ways: Ways) -> list[Arm]:
        proven = self._of_width(ways.width)
        if proven is None:
            self.notes.append(f"{quoted(ways.name)} is left out: {self._no_width(ways)}")
            return []
        most = most_drafts(proven.widths)
        usual = usual_drafts(self._block, most) if ways.usual else ()
        asked = sorted({*ways.drafts, *usual})
        fitting = [count for count in asked if count <= most]
        if len(fitting) < len(asked):
            self.notes.append(
                f"{quoted(ways.name)}: more than {counted(most, 'draft')} fit no pass here and are left out; "
                "convert with a larger --block"
            )
        if not fitting and not ways.as_they_pay:
            return []
        source: DraftSource | str = PerfectSource(self.known) if ways.perfect else self.source_of(ways)
        if isinstance(source, str):
            self.notes.append(f"{quoted(ways.name)} is left out: {source}")
            return []
        other_bits = not set(proven.widths) <= set(self.proven.widths)
        if other_bits:
            self.notes.append(
                f"the texts of {quoted(ways.name)} are not compared: passes of "
                f"{counted(proven.widths[0], 'row')} are not proven to give the same text here; "
                "`anespec validate` may prove it"
            )
        paying = Way(most, True, ways.name, other_bits)
        fixed = [Way(count, name=ways.name, other_bits=other_bits) for count in fitting]
        return [
            Arm(way, self._engine(way, proven, source, most), source)
            for way in ([paying] if ways.as_they_pay else []) + fixed
        ]

    def _engine(self, way: Way, proven: Proven, source: DraftSource, most: int) -> Engine:
        if way.as_they_pay:
            return Engine(
                self.verifier,
                proven,
                source,
                costs=self.costs,
                repetition_filter=self.repetition_filter,
            )
        return Engine(
            self.verifier,
            proven,
            BoundedSource(source, way.most) if way.most else None,
            costs=equal_costs(proven.widths),
            min_draft_len=most or None,
        )

    @property
    def _block(self) -> int:
        return self.verifier.shape.block

    def _of_width(self, width: int | None) -> Proven | None:
        """Return what is proven, limited to passes of a width; None if the artifact has none."""
        if width is None:
            return self.proven
        return replace(self.proven, widths=(width,)) if width in self.verifier.shape.widths else None

    def _no_width(self, ways: Ways | Baseline) -> str:
        return (
            f"this artifact has no passes of {counted(ways.width or 0, 'row')}; `anespec convert` sets them "
            "with --block and --shapes"
        )
