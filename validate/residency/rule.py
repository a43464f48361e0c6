"""Define a rule: what it checks in a package, the source of its fact, and its effect on residency."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from anespec.manifests.residency import RuleFinding, Severity
from anespec.runtime.backends.portable.mil_package import Operation
from anespec.system.grades import Grade as Grade
from anespec.validate.residency.shard_view import ArtifactView, FunctionView, ShardView


class Effect(IntEnum):
    """The effect of a finding on residency; the greatest of several in one shard decides.

    The planner chooses the CPU before it runs the Neural Engine's compiler, so a shard kept on the CPU does
    not meet that compiler's errors. What Core ML itself refuses is refused on every device.
    """

    NOTHING = 0
    OPERATIONS = 1
    COMPILER_ERROR = 2
    SHARD = 3
    CORE_ML_ERROR = 4


@dataclass(frozen=True)
class Finding:
    """The result of a rule. `operations` are the (function, operation) pairs that it concerns."""

    shard: str | None
    subject: str
    detail: str
    severity: Severity
    effect: Effect
    operations: tuple[tuple[str, str], ...] = ()


class Rule(ABC):
    """One rule.

    `id` is the name for `--explain`; `looks_at` and `mend`, the fix, are clauses for people. A rule of grade
    C never fails an artifact.
    """

    id: ClassVar[str]
    grades: ClassVar[tuple[Grade, ...]]
    source: ClassVar[str]
    fact: ClassVar[str]
    looks_at: ClassVar[str]
    severity: ClassVar[Severity]
    effect: ClassVar[Effect] = Effect.NOTHING
    mend: ClassVar[str]

    @abstractmethod
    def check(self, artifact: ArtifactView) -> Iterator[Finding]:
        """Yield the findings for an artifact."""

    @property
    def grade(self) -> str:
        """Return the grades as one text."""
        return " / ".join(self.grades)

    def record(self, finding: Finding) -> RuleFinding:
        """Return a finding as a verdict stores it."""
        return RuleFinding(
            rule=self.id,
            severity=finding.severity,
            shard=finding.shard,
            subject=finding.subject,
            detail=finding.detail,
            mend=self.mend,
        )


class ShardRule(Rule):
    """A rule that checks one shard at a time."""

    def check(self, artifact: ArtifactView) -> Iterator[Finding]:
        """Yield the findings for each shard."""
        for shard in artifact.shards:
            yield from self.check_shard(shard)

    @abstractmethod
    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        """Yield the findings for a shard."""

    def found(
        self,
        shard: ShardView,
        subject: str,
        detail: str,
        *,
        severity: Severity | None = None,
        operations: tuple[tuple[str, str], ...] = (),
    ) -> Finding:
        """Return a finding of this rule; one that only warns has no effect on residency."""
        severity = severity or self.severity
        effect = self.effect if severity is Severity.FAIL else Effect.NOTHING
        return Finding(shard.name, subject, detail, severity, effect, operations)

    def found_at(
        self,
        shard: ShardView,
        function: FunctionView,
        op: Operation,
        detail: str,
        severity: Severity | None = None,
    ) -> Finding:
        """Return a finding at one operation."""
        return self.found(
            shard, function.described(op), detail, severity=severity, operations=((function.name, op.name),)
        )


class OperationRule(ShardRule):
    """A rule that checks one operation at a time, except constants."""

    effect = Effect.OPERATIONS

    def check_shard(self, shard: ShardView) -> Iterator[Finding]:
        """Yield the findings for each operation."""
        for function in shard.functions:
            for op in function.compute:
                if (detail := self.objection(function, op, shard)) is not None:
                    yield self.found_at(shard, function, op, detail)

    @abstractmethod
    def objection(self, function: FunctionView, op: Operation, shard: ShardView) -> str | None:
        """Return the problem of an operation, or None."""
