"""The verdicts that the gates write and the runtime reads: per backend, library version and machine."""

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import AwareDatetime, Field

from anespec.manifests.schema import Count, Index, Record


class Invariance(StrEnum):
    """A change of circumstances that leaves a row's bits alone (docs/DESIGN.md, section 5)."""

    LANE = "lane"
    NEIGHBOURS = "neighbours"
    STALE = "stale"
    PARTITION = "partition"
    WANTED = "wanted"
    REPEAT = "repeat"
    WIDTH = "width"
    SPAN = "span"
    REGION = "region"


REQUIRED_FOR_SPECULATION = (
    Invariance.LANE,
    Invariance.NEIGHBOURS,
    Invariance.STALE,
    Invariance.PARTITION,
    Invariance.WANTED,
    Invariance.REPEAT,
)

OPTIONAL = tuple(invariance for invariance in Invariance if invariance not in REQUIRED_FOR_SPECULATION)
"""The gate passes without them. docs/DESIGN.md, section 5, says what each of them permits."""


class RunEnvironment(Record):
    """The circumstances of a verdict: another backend, library version or processor needs its own."""

    backend: str
    library_version: str
    executor: int = Field(default=0, description="version of what turns shards into the library's operations")
    machine: str
    threads: Count
    artifact: str = Field(description="sha256 over all that a row's bits follow from (Artifact.fingerprint)")
    sequences: Count | None = Field(
        default=None, description="regions, where fewer than the artifact has are used"
    )

    def with_all_sequences(self) -> Self:
        """Return the same circumstances with all regions in use, for results that do not depend on slots."""
        return self.model_copy(update={"sequences": None})


class Ranked(StrEnum):
    """Outcomes in the order in which they decide: of several, the one that is declared first."""

    @classmethod
    def ranked(cls, found: Iterable[Self]) -> list[Self]:
        """Return the different outcomes among those found, the deciding one first."""
        return sorted(set(found), key=list(cls).index)

    @classmethod
    def deciding(cls, found: Iterable[Self], otherwise: Self) -> Self:
        """Return the outcome that decides; `otherwise` where there is none at all."""
        return next(iter(cls.ranked(found)), otherwise)


class Status(Ranked):
    """The status of a gate or of one of its checks: the same words in messages and data everywhere.

    `no cases`: there was nothing to compare, as for region with one sequence, which is neither for nor
    against. `reported`: measured without a limit that could fail it, or only predicted; it decides nothing
    beside another.
    """

    FAIL = "fail"
    NOT_RUN = "not run"
    NO_CASES = "no cases"
    PASS = "pass"
    REPORTED = "reported"


def invariance_words(invariance: Invariance, standing: Status) -> str:
    """Return an invariance's status for people: an optional one that fails is not proven, and does not fail
    the gate."""
    return "not proven" if standing is Status.FAIL and invariance in OPTIONAL else standing.value


class InvarianceVerdict(Record):
    """The outcome for one invariance: `cases` comparisons, of which `unequal` differed in some bit.

    `largest_difference` is over logits (0 when only state bits differed).
    """

    invariance: Invariance
    cases: Index
    unequal: Index
    largest_difference: float = Field(ge=0)
    detail: str = ""

    @property
    def proven(self) -> bool:
        """True where at least one comparison was made and none differed."""
        return self.cases > 0 and self.unequal == 0

    @property
    def standing(self) -> Status:
        """The outcome as people read it."""
        if not self.cases:
            return Status.NO_CASES
        return Status.FAIL if self.unequal else Status.PASS


Moment = Annotated[
    AwareDatetime, Field(ge=datetime(1970, 1, 2, tzinfo=UTC), lt=datetime(9999, 12, 31, tzinfo=UTC))
]
"""A time that can be compared with any other and shown in any zone."""


class Verdict(Record):
    """One run of a gate, and where its outcome holds."""

    circumstances: RunEnvironment
    measured_at: Moment = Field(default_factory=lambda: datetime.now(UTC))


VerdictT = TypeVar("VerdictT", bound=Verdict)


class VerdictFile(Record, Generic[VerdictT]):
    """gates/GATE.json: at most one verdict per circumstances, the newest kept."""

    gate: ClassVar[str]

    schema_version: Literal[1] = 1
    verdicts: tuple[VerdictT, ...] = ()

    def find(self, circumstances: RunEnvironment) -> VerdictT | None:
        """The verdict measured under exactly these circumstances."""
        return next((v for v in self.verdicts if v.circumstances == circumstances), None)

    def with_verdict(self, verdict: VerdictT) -> Self:
        """This file with `verdict` in place of an older one under the same circumstances."""
        kept = [v for v in self.verdicts if v.circumstances != verdict.circumstances]
        return type(self)(verdicts=(*kept, verdict))

    def overruled_by(self, other: Self) -> Self:
        """This file's verdicts and another's, whose hold where both have one for the same circumstances."""
        if not other.verdicts:
            return self
        kept = [v for v in self.verdicts if other.find(v.circumstances) is None]
        return type(self)(verdicts=(*kept, *other.verdicts))


class ExactnessVerdict(Verdict):
    """One run of the exactness gate.

    `proven_widths` are the numbers of rows that a pass may have, ascending, since they leave the same bits as
    the block's: the block itself, and narrower and wider ones. `proven_spans` are the numbers of slots that
    it may look at, for each pool in the manifest's order, all of its slots last. Both are empty in a verdict
    of before they were noted. `seed` is what the cases were drawn with, `left_out` says which
    were not run; None and empty in a verdict of before cases were drawn.
    """

    form: Literal["quick", "full"]
    invariances: tuple[InvarianceVerdict, ...]
    proven_widths: tuple[Count, ...] = ()
    proven_spans: tuple[tuple[Count, ...], ...] = ()
    seed: Index | None = None
    left_out: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every invariance of this version was checked."""
        return not self.unmeasured

    @property
    def unmeasured(self) -> tuple[Invariance, ...]:
        """The invariances that this measurement lacks: unknown then, or left out."""
        looked_at = {v.invariance for v in self.invariances}
        return tuple(invariance for invariance in Invariance if invariance not in looked_at)

    def usable_widths(self, block: int) -> tuple[int, ...]:
        """The proven widths that may be used. The quick form looks at some ten narrow rows, and one row in
        thirty was seen to differ, so it says nothing of passes of fewer rows than a block."""
        return tuple(width for width in self.proven_widths if width >= block or self.form == "full")

    def proves(self, invariance: Invariance) -> bool:
        """Whether this invariance was measured and held."""
        return any(v.proven for v in self.invariances if v.invariance is invariance)

    @property
    def allows_speculation(self) -> bool:
        """Whether the invariances that speculation needs all hold."""
        return all(self.proves(invariance) for invariance in REQUIRED_FOR_SPECULATION)

    def standing_of(self, invariance: Invariance) -> Status:
        """The status of one invariance; a difference in any of its entries counts."""
        found = (v.standing for v in self.invariances if v.invariance is invariance)
        return Status.deciding(found, Status.NOT_RUN)

    @property
    def standing(self) -> Status:
        """The outcome for speculation: `pass` where all that it needs was compared and held."""
        return Status.deciding(map(self.standing_of, REQUIRED_FOR_SPECULATION), Status.NOT_RUN)


class ExactnessFile(VerdictFile[ExactnessVerdict]):
    """gates/exactness.json. A quick run does not take the place of a full one, which saw more."""

    gate = "exactness"

    def with_verdict(self, verdict: ExactnessVerdict) -> Self:
        """This file with `verdict`, unless it is a quick one that proves no less than a full one here."""
        known = self.find(verdict.circumstances)
        if known is None or known.form == verdict.form or verdict.form == "full" or not known.complete:
            return super().with_verdict(verdict)
        refuted = {v.invariance for v in verdict.invariances if v.unequal}
        fewer_widths = not set(known.proven_widths) <= set(verdict.proven_widths)
        if fewer_widths or any(known.proves(invariance) for invariance in refuted):
            return super().with_verdict(verdict)
        return self
