"""One word per gate, for the head of the page."""

from collections.abc import Sequence
from dataclasses import dataclass

from anespec.manifests.residency import ResidencyVerdict
from anespec.manifests.schema import Target
from anespec.manifests.verdicts import ExactnessVerdict, Status
from anespec.system.formatting import counted, listed
from anespec.validate.golden.figures import GoldenVerdict
from anespec.validate.quality.verdict import QualityVerdict
from anespec.validate.residency.gate import decides


@dataclass(frozen=True)
class Badge:
    """How a gate stands."""

    gate: str
    standing: Status
    words: str


def residency_badge(
    verdicts: Sequence[ResidencyVerdict], target: Target, required: bool = False
) -> Badge | None:
    """By the newest verdict; None for the CPU, to which residency is of no matter unless it is `required`."""
    if target is Target.CPU and not required:
        return None
    if not verdicts:
        return _not_run("residency")
    newest = verdicts[0]
    shards = counted(len(newest.shards), "shard")
    standing = newest.standing
    if decides(newest, required):
        standing = Status.PASS if newest.passed else Status.FAIL
    words = f"{newest.source}: {len(newest.shards) - len(newest.off_ane)} of {shards} on the Neural Engine"
    return Badge("residency", standing, words)


def golden_badge(verdicts: Sequence[GoldenVerdict]) -> Badge:
    """The worst of all circumstances."""
    return _by_place("golden", [(v.circumstances.backend, v.standing) for v in verdicts])


def exactness_badge(verdicts: Sequence[ExactnessVerdict]) -> Badge:
    """The worst of all circumstances."""
    return _by_place("exactness", [(v.circumstances.backend, v.standing) for v in verdicts])


def quality_badge(verdicts: Sequence[QualityVerdict]) -> Badge:
    """The worst of all texts, by their names; without any limit the largest mean divergence."""
    if not verdicts or {verdict.standing for verdict in verdicts} != {Status.REPORTED}:
        return _by_place("quality", [(v.text.name, v.standing) for v in verdicts])
    kl = max(verdict.figures.kl.mean for verdict in verdicts)
    return Badge("quality", Status.REPORTED, f"reported: mean KL divergence up to {kl:.2g} nats, no limit")


def _by_place(gate: str, outcomes: Sequence[tuple[str, Status]]) -> Badge:
    if not outcomes:
        return _not_run(gate)
    found: dict[Status, dict[str, None]] = {}
    for place, standing in outcomes:
        found.setdefault(standing, {})[place] = None
    ranked = Status.ranked(found)
    words = [f"{standing} on {listed(list(found[standing]))}" for standing in ranked]
    return Badge(gate, ranked[0], "; ".join(words))


def _not_run(gate: str) -> Badge:
    return Badge(gate, Status.NOT_RUN, "not run")
