"""Run an artifact's gates in a background process, and print the progress.

    python -P -m anespec.validate.check_process DESCRIPTOR CHECK

CHECK is a CheckAsked as JSON. Each printed line is a CheckReport. Verdicts are recorded in gates/ as by
`validate`; the lines hold them too, in case they cannot be recorded.
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anespec.system.child_python import answer_stream
from anespec.system.yielding_child import yield_to_others

if TYPE_CHECKING:
    from anespec.manifests.store import Artifact
    from anespec.manifests.verdicts import ExactnessVerdict, RunEnvironment
    from anespec.runtime.passes import Verifier
    from anespec.system.progress import Progress
    from anespec.validate.check_parts import CheckAsked, CheckReport, Part
    from anespec.validate.exactness.repeat_checks import Elsewhere

MODULE = "anespec.validate.check_process"


class _CheckProgress:
    """Reports the finished steps and their share of the time while parts run."""

    def __init__(self, parts: "Sequence[Part]", say: "Callable[[CheckReport], None]") -> None:
        self._say = say
        self._steps = self._weight = 0
        self._whole = sum(part.weight for part in parts)
        self._last_report: tuple[int, str, int] | None = None

    def of_part(self, part: "Part") -> "Progress":
        """Return the progress callback of a part that runs after all finished ones."""
        from anespec.validate.check_parts import CheckReport

        behind = 0.0

        def take(note: str, share: float | None = None, /) -> None:
            nonlocal behind
            # The share never falls: notes may lack one, and an estimate may be corrected.
            behind = max(behind, min(share or 0.0, 1.0))
            done = self._steps + min(int(behind * part.steps), max(0, part.steps - 1))
            whole = min((self._weight + behind * part.weight) / self._whole, 1.0)
            if self._last_report != (current := (done, part.value, int(100 * whole))):
                self._last_report = current
                self._say(CheckReport(done=done, share=whole, doing=part))

        take("")
        return take

    def ended(self, part: "Part") -> dict[str, Any]:
        """Count the part as finished, and return the progress fields of its report."""
        self._steps += part.steps
        self._weight += part.weight
        return {"done": self._steps, "share": min(self._weight / self._whole, 1.0), "doing": part.value}


def check(asked: "CheckAsked", clock: Callable[[], float], say: "Callable[[CheckReport], None]") -> None:
    """Run the parts in their order; a failure of the golden gate ends the check.

    Raises:
        AnespecError: the artifact does not run.
    """
    from anespec.manifests.known_hashes import KnownHashes
    from anespec.manifests.store import Artifact
    from anespec.runtime.backends import circumstances
    from anespec.system.errors import AnespecError, GoldenGateError
    from anespec.validate.check_parts import CheckReport, Part

    artifact = Artifact(Path(asked.artifact), KnownHashes(), asked.sequences)
    here = circumstances(artifact, asked.backend, asked.threads)
    progress = _CheckProgress(asked.parts, say)
    if Part.GOLDEN in asked.parts:
        report, trouble = progress.of_part(Part.GOLDEN), None
        try:
            _golden(artifact, asked, report)
        except GoldenGateError as error:
            say(CheckReport(doing=Part.GOLDEN, failure=str(error)))
            return
        except AnespecError as error:
            trouble = str(error)
        say(CheckReport(**progress.ended(Part.GOLDEN), trouble=trouble))
    if Part.EXACTNESS in asked.parts or Part.COSTS in asked.parts:
        _measure(artifact, here, asked, clock, progress, say)
    if Part.RESIDENCY in asked.parts:
        trouble = _residency(artifact, progress.of_part(Part.RESIDENCY))
        say(CheckReport(**progress.ended(Part.RESIDENCY), trouble=trouble))


def _measure(
    artifact: "Artifact",
    here: "RunEnvironment",
    asked: "CheckAsked",
    clock: Callable[[], float],
    progress: _CheckProgress,
    say: "Callable[[CheckReport], None]",
) -> None:
    """Run the exactness gate if asked to and measure the costs of passes, both with one open verifier."""
    from anespec.runtime.backends import open_verifier
    from anespec.runtime.proven import Proven
    from anespec.validate.check_parts import CheckReport, Part
    from anespec.validate.costs import CostVerdict, recorded_costs
    from anespec.validate.kept import kept_exactness

    verdict = None if Part.EXACTNESS in asked.parts else kept_exactness(artifact, here, "quick")
    if verdict is None:
        report = progress.of_part(Part.EXACTNESS)
        # This runs before the artifact is opened here, so that memory holds it only once.
        elsewhere, trouble = _elsewhere(artifact, here, asked)
    with closing(open_verifier(artifact, asked.backend, asked.threads, asked.workers)) as verifier:
        if verdict is None:
            verdict = _exactness(artifact, verifier, here, elsewhere, report)
            say(CheckReport(**progress.ended(Part.EXACTNESS), exactness=verdict, trouble=trouble))
        report = progress.of_part(Part.COSTS)
        proven = Proven.of(verdict, verifier.shape)
        costs = recorded_costs(artifact, verifier, here, proven, report, lambda error: None, clock)
    say(CheckReport(**progress.ended(Part.COSTS), costs=CostVerdict.of(costs, here)))


def _residency(artifact: "Artifact", report: "Progress") -> str | None:
    """Run the residency gate, or return why it could not run; no other gate depends on it."""
    from anespec.system.errors import AnespecError
    from anespec.system.progress import in_steps
    from anespec.validate.residency.compute_plan import neural_engine
    from anespec.validate.residency.gate import residency_gate

    try:
        residency_gate(artifact, in_steps(report, 1 + len(artifact.manifest.shards)), neural_engine())
    except AnespecError as error:
        return str(error)
    return None


def _golden(artifact: "Artifact", asked: "CheckAsked", report: "Progress") -> None:
    from anespec.validate.gates import find_source, golden_gate
    from anespec.validate.golden.figures import require_golden

    source = find_source(artifact)
    require_golden(golden_gate(artifact, source, asked.backend, asked.threads, report, asked.workers))


def _elsewhere(
    artifact: "Artifact", here: "RunEnvironment", asked: "CheckAsked"
) -> "tuple[Elsewhere | None, str | None]":
    from anespec.system.errors import AnespecError
    from anespec.validate.exactness.repeat_process import run_elsewhere

    try:
        return run_elsewhere(artifact, here, asked.workers), None
    except AnespecError as error:
        return None, str(error)


def _exactness(
    artifact: "Artifact",
    verifier: "Verifier",
    here: "RunEnvironment",
    elsewhere: "Elsewhere | None",
    report: "Progress",
) -> "ExactnessVerdict":
    """Return the verdict of the quick form, or an earlier full verdict that it does not refute."""
    from anespec.validate.gates import recorded_exactness
    from anespec.validate.kept import kept_exactness

    found = recorded_exactness(artifact, verifier, here, "quick", report, elsewhere, lambda error: None)
    return kept_exactness(artifact, here, "quick") or found


def main() -> None:
    """Print the reports, or one error message on standard error."""
    clock = yield_to_others(int(sys.argv[1]))
    answers = answer_stream()
    # Heavy libraries are loaded from here on, at the lowest priority.
    from anespec.system.errors import AnespecError
    from anespec.validate.check_parts import CheckAsked, CheckReport

    def say(report: CheckReport) -> None:
        answers.write(report.model_dump_json().encode() + b"\n")
        answers.flush()

    try:
        check(CheckAsked.model_validate_json(sys.argv[2]), clock, say)
    except AnespecError as error:
        raise SystemExit(str(error)) from None
    os._exit(0)


if __name__ == "__main__":
    main()
