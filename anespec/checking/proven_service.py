"""Run a service with the features that the gates have proven, before or while it runs."""

import contextlib
import logging
import time
from typing import TYPE_CHECKING

from anespec.checking.background import Checks
from anespec.checking.model_check import ModelCheck, check_asked, run_check
from anespec.models.loading import OpenedModel, ask_while_closed, costs_here, exactness_here, say_inexact
from anespec.runtime.options import LoadOptions, WhenGates
from anespec.system.errors import StorageError
from anespec.system.progress import SILENT, ProgressCallbacks

if TYPE_CHECKING:
    from anespec.runtime.drafters import DraftSource
    from anespec.runtime.engine.service import Service
    from anespec.runtime.proven import Proven
    from anespec.runtime.speculation.pass_costs import PassCosts
    from anespec.runtime.speculation.running_costs import RunningCosts
    from anespec.system.errors import GoldenGateError

_log = logging.getLogger(__name__)


class ProvenService:
    """The service of an open artifact. It applies the gates' verdicts."""

    service: "Service"
    """The service that runs requests; `prove` replaces it if the gates run first."""

    opened: OpenedModel
    """The open artifact; `prove` replaces it if the gates run first."""

    proven: "Proven"
    """The proven features in use."""

    gate_seconds: float = 0.0
    """Seconds that `prove` spent on gates before the first request could run."""

    def __init__(
        self, opened: OpenedModel, options: LoadOptions, source: "DraftSource | None", checks: Checks
    ) -> None:
        """Start without any feature that needs a proof; `prove` adds those.

        `source` drafts tokens once speculation is proven; `checks` are shared by the process's models.
        """
        from anespec.runtime.proven import Proven

        self.opened = opened
        self._options = options
        self._source = source
        self._checks = checks
        self._check: ModelCheck | None = None
        self._failure: GoldenGateError | None = None
        self._costs: RunningCosts | None = None
        self._start(Proven.nothing(opened.verifier.shape, options.allow_inexact))

    def prove(self, watch: ProgressCallbacks = SILENT, beside: bool = True) -> None:
        """Enable the proven features; see ServedArtifact.prove."""
        from anespec.validate.check_parts import require_no_golden_failure

        require_no_golden_failure(self.opened.artifact, self.opened.here)
        if self._options.when_gates is WhenGates.NOW:
            self._prove_now(watch)
        else:
            self._prove_later(watch, beside)

    def take_up(self, proven: "Proven", costs: "PassCosts | None") -> None:
        """Apply new verdicts between two passes."""
        self._know(proven, costs)
        self.service.use(proven, self._costs)

    def require_right(self) -> None:
        """Raise the error of the golden gate if it has failed."""
        if self._failure is not None:
            raise self._failure

    @property
    def checking(self) -> str | None:
        """Return the progress of the background check, e.g. `3 of 12`; None if none runs."""
        return None if self._check is None else self._check.progress

    def stop(self) -> None:
        """End all requests and the check, and record the learned costs; nothing can run afterwards."""
        if self._check is not None:
            self._check.stop()
        self.service.close()
        self._keep_costs()

    def close(self) -> None:
        """Release the model's memory; call `stop` first."""
        self.opened.verifier.close()

    def check_closed(self, watch: ProgressCallbacks) -> None:
        """Run the gates that have no verdict on this machine, after the service is closed; ^C stops them.

        Raises:
            GoldenGateError: the artifact does not compute what its GGUF means.
        """
        if (asked := check_asked(self.opened, self._options)) is not None:
            run_check(asked, self.opened, watch)

    def _prove_now(self, watch: ProgressCallbacks) -> None:
        """Run the gates without a verdict here, then start the engine with what is proven."""
        from anespec.runtime.proven import Proven

        self.service.close()
        began = time.monotonic()
        self.opened = ask_while_closed(self.opened, self._options, watch)
        self.opened, verdict = exactness_here(self.opened, self._options, watch)
        say_inexact(verdict, self._options, watch)
        proven = Proven.of(verdict, self.opened.verifier.shape, self._options.allow_inexact)
        costs = costs_here(self.opened, proven, watch)
        self.gate_seconds = time.monotonic() - began
        self._await_source(watch)
        self._start(proven, costs)

    def _prove_later(self, watch: ProgressCallbacks, beside: bool) -> None:
        """Start with the recorded verdicts; start a background check of the other gates if the options say
        so."""
        from anespec.runtime.proven import Proven
        from anespec.validate.costs import kept_costs
        from anespec.validate.kept import kept_exactness, why_exactness_is_unknown

        artifact, here, shape = self.opened.artifact, self.opened.here, self.opened.verifier.shape
        verdict = kept_exactness(artifact, here, "quick")
        is_later = self._options.when_gates is WhenGates.LATER
        if verdict is None:
            later = "in the background, and gets faster then" if beside else "afterwards, for the next start"
            then = f"it is checked {later}" if is_later else "`--gates now` checks it first"
            watch.note(
                f"{why_exactness_is_unknown(artifact, here)}, so it runs without drafts (guessed tokens)"
                f"{' and one request at a time' if shape.sequences > 1 else ''}: slower, with the same text; "
                f"{then}"
            )
        else:
            say_inexact(verdict, self._options, watch)
            self._await_source(watch)
            proven = Proven.of(verdict, shape, self._options.allow_inexact)
            self.take_up(proven, kept_costs(artifact, here, proven))
        asked = check_asked(self.opened, self._options) if is_later and beside else None
        if asked is not None:
            self._check = ModelCheck(
                self.opened, self._options, asked, verdict, self._checks, self.take_up, self._refuse
            )

    def _start(self, proven: "Proven", costs: "PassCosts | None" = None) -> None:
        from anespec.runtime.engine.engine import Engine
        from anespec.runtime.engine.service import Service

        self._know(proven, costs)
        engine = Engine(
            self.opened.verifier,
            proven,
            self._source,
            costs=self._costs,
            repetition_filter=self._options.prompt_gate,
        )
        checks = self._checks
        self.service = Service(engine, self._options.queue, checks.tell_busy, checks.make_way)

    def _know(self, proven: "Proven", costs: "PassCosts | None") -> None:
        from anespec.runtime.speculation.running_costs import RunningCosts

        self.proven = proven
        self._costs = None if costs is None else RunningCosts(costs)

    def _await_source(self, watch: ProgressCallbacks) -> None:
        """Wait for the draft source, unless that takes long."""
        from anespec.runtime.draft_model.weighed import WeighedSource
        from anespec.runtime.drafters.starting import StartingSource

        source = self._source.ngrams if isinstance(self._source, WeighedSource) else self._source
        if not isinstance(source, StartingSource):
            return
        if source.must_compile:
            watch.note(
                "the code that guesses tokens is compiled for this processor, once; simpler code guesses "
                "until then"
            )
        else:
            source.wait()

    def _refuse(self, error: "GoldenGateError") -> None:
        """Refuse all further answers, since earlier ones may be wrong, too."""
        _log.error("%s", error)
        self._failure = error
        self.service.refuse(error)

    def _keep_costs(self) -> None:
        """Record the learned costs of passes, unless the artifact cannot be written."""
        if self._costs is None:
            return
        from anespec.validate.costs import keep_learned

        costs, self._costs = self._costs, None
        with contextlib.suppress(StorageError):
            keep_learned(self.opened.artifact, self.opened.here, costs.learned)
