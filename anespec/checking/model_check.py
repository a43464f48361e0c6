"""Run the gates that a loaded model still needs, and apply their verdicts."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.checking.background import Check, Checks
from anespec.manifests.verdicts import ExactnessVerdict
from anespec.models.loading import OpenedModel
from anespec.models.model_path import model_name
from anespec.system.errors import AnespecError, GoldenGateError
from anespec.system.progress import ProgressCallbacks

if TYPE_CHECKING:
    from anespec.runtime.options import LoadOptions
    from anespec.runtime.proven import Proven
    from anespec.runtime.speculation.pass_costs import PassCosts
    from anespec.validate.check_parts import CheckAsked, CheckReport

SECONDS_BETWEEN_LOOKS = 0.2

_log = logging.getLogger("anespec.serve")


def check_asked(opened: OpenedModel, options: "LoadOptions") -> "CheckAsked | None":
    """Return the gates without a verdict on this machine; None if all have one."""
    from anespec.validate.check_parts import CheckAsked, missing_parts

    artifact, here = opened.artifact, opened.here
    # The verifier may hold fewer sequences than the verdicts are about.
    shape = replace(opened.verifier.shape, sequences=here.sequences or artifact.manifest.sequences)
    parts = missing_parts(artifact, here, shape)
    if not parts:
        return None
    return CheckAsked(
        artifact=str(artifact.root.resolve()),
        backend=here.backend,
        threads=here.threads,
        workers=options.workers,
        sequences=artifact.sequences,
        parts=parts,
    )


def memory_needed(opened: OpenedModel) -> int:
    """Return roughly the bytes that a check takes in addition to the model: a second copy of it."""
    from anespec.models.memory_limit import memory_of

    return memory_of(opened.artifact.manifest, opened.here.backend)


def run_check(asked: "CheckAsked", opened: OpenedModel, watch: ProgressCallbacks) -> None:
    """Run the gates and wait for them; ^C ends the wait and the check.

    Raises:
        GoldenGateError: the artifact does not compute what its GGUF means.
    """
    failures: list[str] = []
    troubles: list[str] = []

    def hear(report: "CheckReport") -> None:
        if report.failure is not None:
            failures.append(report.failure)

    def end(trouble: str | None) -> None:
        if trouble is not None:
            troubles.append(trouble)

    check = Checks().begin(asked, memory_needed(opened), hear, end)
    try:
        with watch.shares("checking") as report:
            while not check.wait(SECONDS_BETWEEN_LOOKS):
                report(f"{check.progress}, {check.doing} (^C stops it)", check.share)
    except KeyboardInterrupt:
        check.stop()
        watch.note("the check was stopped; the next start begins it again")
        return
    for failure in failures:
        raise GoldenGateError(f"{opened.artifact.root}: {failure}")
    for trouble in troubles:
        watch.note(f"the model could not be checked: {trouble}")


class ModelCheck:
    """The background check of one loaded model."""

    def __init__(
        self,
        opened: OpenedModel,
        options: "LoadOptions",
        asked: "CheckAsked",
        exactness: ExactnessVerdict | None,
        checks: Checks,
        take_up: "Callable[[Proven, PassCosts | None], None]",
        refuse: Callable[[GoldenGateError], None],
    ) -> None:
        """Start the check. `exactness` is the recorded verdict.

        `take_up` is called with the proven features, and with the pass costs once they are known. `refuse` is
        called with the error of a failed golden gate. Both are called in another thread.
        """
        self._opened = opened
        self._options = options
        self._exactness = exactness
        known = exactness is not None and exactness.allows_speculation
        self._had_drafts = known or options.allow_inexact or options.drafter == "none"
        self._begins_drafts = False
        self._take_up = take_up
        self._refuse = refuse
        self._check: Check = checks.begin(asked, memory_needed(opened), self._hear, self._end)

    @property
    def progress(self) -> str | None:
        """Return the progress, as in `3 of 12`; None once the check has ended."""
        return self._check.progress

    def stop(self) -> None:
        """Stop the check; verdicts that it has recorded stay."""
        self._check.stop()

    def _hear(self, report: "CheckReport") -> None:
        name = model_name(Path(self._opened.artifact.manifest.source.name))
        if report.trouble is not None:
            _log.warning("%s: the %s gate did not finish: %s", name, report.doing, report.trouble)
        if report.failure is not None:
            self._refuse(GoldenGateError(f"{self._opened.artifact.root}: {report.failure}"))
        if report.exactness is not None:
            self._use(report.exactness, None)
        if report.costs is not None:
            self._use(self._exactness, report.costs.costs)

    def _use(self, verdict: ExactnessVerdict | None, costs: "PassCosts | None") -> None:
        from anespec.runtime.proven import Proven

        if verdict is None:
            return
        self._exactness = verdict
        proven = Proven.of(verdict, self._opened.verifier.shape, self._options.allow_inexact)
        self._begins_drafts |= proven.speculate and not self._had_drafts
        # A model that was closed meanwhile does not need the verdict.
        with contextlib.suppress(AnespecError):
            self._take_up(proven, costs)

    def _end(self, trouble: str | None) -> None:
        name = model_name(Path(self._opened.artifact.manifest.source.name))
        if trouble is None:
            _log.info("%s: the gates are done%s", name, "; drafts begin" if self._begins_drafts else "")
        else:
            _log.warning(
                "%s: is not checked in the background, and runs on without: %s; `anespec validate` checks it",
                name,
                trouble,
            )
