"""Explain a rule of the residency gate: its fact, grade, source, what it checks, and the fix."""

from dataclasses import asdict, dataclass

from anespec.validate.residency.rule import Rule
from anespec.validate.residency.rules import PRACTICES, RULES, Practice, find_rule

ALL = "all"


@dataclass(frozen=True)
class Explanation:
    """The explanation of one rule, or of a practice, whose last three fields are None."""

    id: str
    grade: str
    source: str
    fact: str
    severity: str | None = None
    looks_at: str | None = None
    mend: str | None = None

    def facts(self) -> dict[str, str | None]:
        """Return the object for --json."""
        return asdict(self)

    def text(self, brief: bool = False) -> str:
        """Return the explanation as several lines, or in one line if `brief`."""
        if brief:
            return f"{self.id} ({self.severity or 'practice'}, grade {self.grade}): {self.fact}"
        lines = [f"{self.id}: {self.fact}", f"  grade     {self.grade}", f"  source    {self.source}"]
        if self.looks_at is not None:
            lines += [
                f"  looks at  {self.looks_at}",
                f"  verdict   {self.severity}",
                f"  fix       {self.mend}",
            ]
        return "\n".join(lines)


def explained(name: str) -> tuple[Explanation, ...]:
    """Return the explanation of the rule called `name`, or of all rules for `all`.

    Raises:
        RequestError: there is no such rule.
    """
    if name != ALL:
        return (_explanation(find_rule(name)),)
    return (*map(_explanation, RULES), *map(_explanation, PRACTICES))


def _explanation(rule: Rule | Practice) -> Explanation:
    if isinstance(rule, Practice):
        return Explanation(rule.id, rule.grade, rule.source, rule.fact)
    return Explanation(
        rule.id, rule.grade, rule.source, rule.fact, rule.severity.value, rule.looks_at, rule.mend
    )
