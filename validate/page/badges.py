"""One word per gate, for the head of the page."""

from collections.abc import Sequence
from dataclasses import dataclass

from anespec.manifests.residency import PlanSource, ResidencyVerdict
from anespec.manifests.schema import Target
from anespec.manifests.verdicts import ExactnessVerdict
from anespec.validate.figures import GoldenVerdict
from anespec.validate.quality.verdict import QualityVerdict


@dataclass(frozen=True)
class Badge:
    """A gate's state: `green`, `red`, `noted` (known, but decides nothing) or `absent`."""

    gate: str
    state: str
    words: str


def residency_badge(verdicts: Sequence[ResidencyVerdict], target: Target) -> Badge:
    """By the newest verdict; a prediction only ever notes."""
    if not verdicts:
        return _absent("residency")
    newest = verdicts[0]
    on_ane, shards = len(newest.shards) - len(newest.off_ane), len(newest.shards)
    words = f"{newest.source}: {on_ane} of {shards} shards on the Neural Engine"
    if target is Target.CPU:
        return Badge("residency", "noted", f"{words}; built for the CPU")
    if newest.source is PlanSource.PREDICTED:
        return Badge("residency", "noted", words)
    return Badge("residency", "green" if newest.passed else "red", words)


def golden_badge(verdicts: Sequence[GoldenVerdict]) -> Badge:
    """Red where any circumstances are."""
    return _by_backend("golden", [(v.circumstances.backend, v.passed) for v in verdicts])


def exactness_badge(verdicts: Sequence[ExactnessVerdict]) -> Badge:
    """Red where any circumstances do not allow speculation."""
    return _by_backend("exactness", [(v.circumstances.backend, v.allows_speculation) for v in verdicts])


def quality_badge(verdicts: Sequence[QualityVerdict]) -> Badge:
    """Green only by limits; without any the mean divergence is noted."""
    if not verdicts or any(not v.passed for v in verdicts) or all(v.limited for v in verdicts):
        return _by_backend("quality", [(v.circumstances.backend, v.passed) for v in verdicts])
    kl = max(verdict.figures.kl.mean for verdict in verdicts)
    return Badge("quality", "noted", f"mean KL divergence up to {kl:.2g} nats, no limit set")


def _by_backend(gate: str, outcomes: Sequence[tuple[str, bool]]) -> Badge:
    if not outcomes:
        return _absent(gate)
    good = list(dict.fromkeys(backend for backend, passed in outcomes if passed))
    bad = list(dict.fromkeys(backend for backend, passed in outcomes if not passed))
    words = [f"red on {', '.join(bad)}"] if bad else []
    words += [f"green on {', '.join(good)}"] if good else []
    return Badge(gate, "red" if bad else "green", "; ".join(words))


def _absent(gate: str) -> Badge:
    return Badge(gate, "absent", "not measured yet")
