"""The verdicts that the gates write and the runtime reads: per backend, library version and machine."""

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import AwareDatetime, Field

from anespec.manifests.schema import Count, Index, Record


class Invariance(StrEnum):
    """A change of circumstances that must not change a row's bits (docs/DESIGN.md, section 5)."""

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
"""The invariances without which the gate passes. docs/DESIGN.md, section 5, says what each permits."""


class RunEnvironment(Record):
    """The environment for which a verdict is valid; another backend, version or machine needs its own."""

    backend: str
    library_version: str
    executor: int = Field(default=0, description="version of the code that runs shards with the library")
    machine: str
    threads: Count
    artifact: str = Field(description="sha256 over everything that affects bits (Artifact.fingerprint)")
    sequences: Count | None = Field(
        default=None, description="number of sequences, if fewer are used than the artifact has"
    )

    folded_by: str | None = Field(
        default=None,
        exclude_if=lambda name: name is None,
        description="what folds the chunks of recurrent layers; omitted without such layers",
    )

    def with_all_sequences(self) -> Self:
        """Return the same environment with all sequences in use, for results that do not depend on slots."""
        return self.model_copy(update={"sequences": None})


class Ranked(StrEnum):
    """An enumeration of outcomes; of several outcomes, the one that is declared first decides."""

    @classmethod
    def ranked(cls, found: Iterable[Self]) -> list[Self]:
        """Return the distinct outcomes in `found`, the deciding one first."""
        return sorted(set(found), key=list(cls).index)

    @classmethod
    def deciding(cls, found: Iterable[Self], otherwise: Self) -> Self:
        """Return the outcome in `found` that decides; `otherwise` if there is none."""
        return next(iter(cls.ranked(found)), otherwise)


class Status(Ranked):
    """The status of a gate or of one of its checks, in messages and in data.

    `no cases`: there was nothing to compare, such as for `region` with one sequence; it neither proves nor
    refutes. `reported`: measured without a limit, or only predicted; another status takes precedence.
    """

    FAIL = "fail"
    NOT_RUN = "not run"
    NO_CASES = "no cases"
    PASS = "pass"
    REPORTED = "reported"


def invariance_words(invariance: Invariance, standing: Status) -> str:
    """Return an invariance's status as text; a failed optional one is "not proven", as the gate may pass."""
    return "not proven" if standing is Status.FAIL and invariance in OPTIONAL else standing.value


class InvarianceVerdict(Record):
    """The result for one invariance: of `cases` comparisons, `unequal` differed in some bit.

    `largest_difference` is that of logits (0 if only the bits of states differed).
    """

    invariance: Invariance
    cases: Index
    unequal: Index
    largest_difference: float = Field(ge=0)
    detail: str = ""

    @property
    def proven(self) -> bool:
        """Whether at least one comparison was made and none differed."""
        return self.cases > 0 and self.unequal == 0

    @property
    def standing(self) -> Status:
        """The status for reports."""
        if not self.cases:
            return Status.NO_CASES
        return Status.FAIL if self.unequal else Status.PASS


Moment = Annotated[
    AwareDatetime, Field(ge=datetime(1970, 1, 2, tzinfo=UTC), lt=datetime(9999, 12, 31, tzinfo=UTC))
]
"""A time with its time zone."""


class Verdict(Record):
    """The result of a run of a gate, and the environment for which it is valid."""

    circumstances: RunEnvironment
    measured_at: Moment = Field(default_factory=lambda: datetime.now(UTC))


VerdictT = TypeVar("VerdictT", bound=Verdict)


class VerdictFile(Record, Generic[VerdictT]):
    """The file gates/GATE.json, with the newest verdict for each environment."""

    gate: ClassVar[str]

    schema_version: Literal[1] = 1
    verdicts: tuple[VerdictT, ...] = ()

    def find(self, circumstances: RunEnvironment) -> VerdictT | None:
        """Return the verdict for exactly this environment; None if there is none."""
        return next((v for v in self.verdicts if v.circumstances == circumstances), None)

    def with_verdict(self, verdict: VerdictT) -> Self:
        """Return the file with `verdict` added; it replaces an older one for the same environment."""
        kept = [v for v in self.verdicts if v.circumstances != verdict.circumstances]
        return type(self)(verdicts=(*kept, verdict))

    def overruled_by(self, other: Self) -> Self:
        """Return the verdicts of both files; for the same environment, that of `other` is kept."""
        if not other.verdicts:
            return self
        kept = [v for v in self.verdicts if other.find(v.circumstances) is None]
        return type(self)(verdicts=(*kept, *other.verdicts))


class ExactnessVerdict(Verdict):
    """The result of a run of the exactness gate.

    `proven_widths` are the widths, ascending, at which a pass gives the same bits as at the block's width,
    which is one of them. `proven_spans` are the proven numbers of slots to which a pass attends, for each
    pool in the manifest's order; the last is all slots. Both are empty in verdicts from before they were
    recorded. `seed` is the seed of the random cases, and `left_out` lists the cases that were not run; None
    and empty in verdicts from before cases were random.
    """

    form: Literal["quick", "full"]
    invariances: tuple[InvarianceVerdict, ...]
    proven_widths: tuple[Count, ...] = ()
    proven_spans: tuple[tuple[Count, ...], ...] = ()
    seed: Index | None = None
    left_out: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether all invariances of this version were measured."""
        return not self.unmeasured

    @property
    def unmeasured(self) -> tuple[Invariance, ...]:
        """The invariances that this verdict lacks, since they were unknown then or left out."""
        looked_at = {v.invariance for v in self.invariances}
        return tuple(invariance for invariance in Invariance if invariance not in looked_at)

    def usable_widths(self, block: int) -> tuple[int, ...]:
        """Return the proven widths that may be used; after a quick run only those of at least a block.

        The quick form checks only some ten rows of narrow passes, and one row in thirty was seen to differ.
        """
        return tuple(width for width in self.proven_widths if width >= block or self.form == "full")

    def proves(self, invariance: Invariance) -> bool:
        """Return whether this invariance was measured and proven."""
        return any(v.proven for v in self.invariances if v.invariance is invariance)

    @property
    def allows_speculation(self) -> bool:
        """Whether all invariances that speculation needs are proven."""
        return all(self.proves(invariance) for invariance in REQUIRED_FOR_SPECULATION)

    def standing_of(self, invariance: Invariance) -> Status:
        """Return the status of one invariance; a difference in any of its entries fails it."""
        found = (v.standing for v in self.invariances if v.invariance is invariance)
        return Status.deciding(found, Status.NOT_RUN)

    @property
    def standing(self) -> Status:
        """The status for speculation: `pass` if all invariances that it needs are proven."""
        return Status.deciding(map(self.standing_of, REQUIRED_FOR_SPECULATION), Status.NOT_RUN)


class ExactnessFile(VerdictFile[ExactnessVerdict]):
    """The file gates/exactness.json. A quick run does not replace a full one, which checked more."""

    gate = "exactness"

    def with_verdict(self, verdict: ExactnessVerdict) -> Self:
        """Return the file with `verdict` added, unless it is quick and does not refute a full one here."""
        known = self.find(verdict.circumstances)
        if known is None or known.form == verdict.form or verdict.form == "full" or not known.complete:
            return super().with_verdict(verdict)
        refuted = {v.invariance for v in verdict.invariances if v.unequal}
        fewer_widths = not set(known.proven_widths) <= set(verdict.proven_widths)
        if fewer_widths or any(known.proves(invariance) for invariance in refuted):
            return super().with_verdict(verdict)
        return self
