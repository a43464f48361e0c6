"""Run an artifact's gates in a background process, and print the progress.

    python -P -m anespec.validate.check_process DESCRIPTOR CHECK

CHECK is a CheckAsked as JSON; each line that it prints is a CheckReport. Verdicts are recorded in gates/ as
`validate` does; where they cannot be, the lines have them all the same.
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


class _Telling:
    """Reports how many of the steps are behind, and what share of the time, as parts go on."""

    def __init__(self, parts: "Sequence[Part]", say: "Callable[[CheckReport], None]") -> None:
        self._say = say
        self._steps = self._weight = 0
        self._whole = sum(part.weight for part in parts)
        self._told: tuple[int, str, int] | None = None

    def of_part(self, part: "Part") -> "Progress":
        """What takes the progress of a part, which comes after those that have ended."""
        from anespec.validate.check_parts import CheckReport

        behind = 0.0

        def take(note: str, share: float | None = None, /) -> None:
            nonlocal behind
            # Notes without a share, or of an estimate that has changed, do not lead back.
            behind = max(behind, min(share or 0.0, 1.0))
            done = self._steps + min(int(behind * part.steps), max(0, part.steps - 1))
            whole = min((self._weight + behind * part.weight) / self._whole, 1.0)
            if self._told != (told := (done, part.value, int(100 * whole))):
                self._told = told
                self._say(CheckReport(done=done, share=whole, doing=part))

        take("")
        return take

    def ended(self, part: "Part") -> dict[str, Any]:
        """The part is behind; what a report says of that."""
        self._steps += part.steps
        self._weight += part.weight
        return {"done": self._steps, "share": min(self._weight / self._whole, 1.0), "doing": part.value}


def check(asked: "CheckAsked", clock: Callable[[], float], say: "Callable[[CheckReport], None]") -> None:
    """Ask the parts in their order; the golden gate's failure ends it.

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
    telling = _Telling(asked.parts, say)
    if Part.GOLDEN in asked.parts:
        report, trouble = telling.of_part(Part.GOLDEN), None
        try:
            _golden(artifact, asked, report)
        except GoldenGateError as error:
            say(CheckReport(doing=Part.GOLDEN, failure=str(error)))
            return
        except AnespecError as error:
            trouble = str(error)
        say(CheckReport(**telling.ended(Part.GOLDEN), trouble=trouble))
    if Part.EXACTNESS in asked.parts or Part.COSTS in asked.parts:
        _measure(artifact, here, asked, clock, telling, say)
    if Part.RESIDENCY in asked.parts:
        trouble = _residency(artifact, telling.of_part(Part.RESIDENCY))
        say(CheckReport(**telling.ended(Part.RESIDENCY), trouble=trouble))


def _measure(
    artifact: "Artifact",
    here: "RunEnvironment",
    asked: "CheckAsked",
    clock: Callable[[], float],
    telling: _Telling,
    say: "Callable[[CheckReport], None]",
) -> None:
    """Ask what passes prove, where that is asked, and what they cost: both of one open verifier."""
    from anespec.runtime.backends import open_verifier
    from anespec.runtime.proven import Proven
    from anespec.validate.check_parts import CheckReport, Part
    from anespec.validate.costs import CostVerdict, recorded_costs
    from anespec.validate.kept import kept_exactness

    verdict = None if Part.EXACTNESS in asked.parts else kept_exactness(artifact, here, "quick")
    if verdict is None:
        report = telling.of_part(Part.EXACTNESS)
        # Before it is opened here, so that it stands in this process's memory once.
        elsewhere, trouble = _elsewhere(artifact, here, asked)
    with closing(open_verifier(artifact, asked.backend, asked.threads, asked.workers)) as verifier:
        if verdict is None:
            verdict = _exactness(artifact, verifier, here, elsewhere, report)
            say(CheckReport(**telling.ended(Part.EXACTNESS), exactness=verdict, trouble=trouble))
        report = telling.of_part(Part.COSTS)
        proven = Proven.of(verdict, verifier.shape)
        costs = recorded_costs(artifact, verifier, here, proven, report, lambda error: None, clock)
    say(CheckReport(**telling.ended(Part.COSTS), costs=CostVerdict.of(costs, here)))


def _residency(artifact: "Artifact", report: "Progress") -> str | None:
    """Run the residency gate; return the reason if that is not possible. No other gate depends on it."""
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
    """Print the reports, or one sentence on standard error."""
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
