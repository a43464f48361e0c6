"""Open an artifact for generating, create its draft source, and run the gates that it needs first."""

import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.models.cache import is_cached, resolve_artifact, sequences_to_run
from anespec.system.errors import AnespecError, StorageError
from anespec.system.formatting import counted, duration_text
from anespec.system.progress import ProgressCallbacks

if TYPE_CHECKING:
    from anespec.manifests.store import Artifact
    from anespec.manifests.verdicts import ExactnessVerdict, RunEnvironment
    from anespec.runtime.drafters import DraftSource
    from anespec.runtime.drafters.memory.learner import OpenMemory
    from anespec.runtime.options import BackendOptions, LoadOptions
    from anespec.runtime.passes import Verifier
    from anespec.runtime.proven import Proven
    from anespec.runtime.sampling.parameters import SamplingParameters
    from anespec.runtime.speculation.pass_costs import PassCosts
    from anespec.runtime.text.tokenizer import Tokenizer
    from anespec.validate.exactness.repeat_checks import Elsewhere


@dataclass(frozen=True)
class OpenedModel:
    """An open artifact: its vocabulary, and a verifier that holds its shards.

    `suggested` has the sampling options that the model's authors suggest. `elsewhere` is the result of a pass
    in a new process, if one ran. `began` is the start of loading by time.monotonic(), after any conversion.
    """

    artifact: "Artifact"
    tokenizer: "Tokenizer"
    verifier: "Verifier"
    here: "RunEnvironment"
    began: float
    suggested: "SamplingParameters"
    elsewhere: "Elsewhere | None" = None


def open_artifact(
    path: Path,
    options: "BackendOptions",
    watch: ProgressCallbacks,
    name: str | None = None,
    usual_sequences: int = 1,
    runs_one: bool = False,
) -> OpenedModel:
    """Open an artifact, or a GGUF, which is converted first if the cache does not have it.

    `name` is the name to show, None for the path. Unless the options say how many sequences run at a time,
    `usual_sequences` of a cached model do. With `runs_one` a single one is loaded of an artifact whose
    exactness has no verdict: then a request runs alone, and its passes attend to all slots that are loaded.

    Raises:
        ArtifactError: the artifact is missing, damaged or of another version.
        RequestError: there is no such backend.
        UsageError: the artifact was converted with other options than the given ones.
    """
    from concurrent.futures import ThreadPoolExecutor

    from anespec.manifests.known_hashes import KnownHashes
    from anespec.manifests.store import Artifact
    from anespec.runtime.backends import circumstances, open_verifier, recorded_starts, resolve_backend
    from anespec.runtime.options import LoadOptions

    resolve_backend(options.backend)  # an unusable backend is an error before anything is converted for it
    wanted = options if isinstance(options, LoadOptions) else LoadOptions()
    wanted.require_draft_model()
    root = resolve_artifact(
        path,
        context=wanted.context,
        sequences=wanted.sequences,
        weights=wanted.weights,
        watch=watch,
    )
    sequences = sequences_to_run(root, wanted.sequences, usual_sequences)
    artifact = Artifact(root, KnownHashes(again=options.verify), sequences)
    backend = resolve_backend(options.backend, artifact.manifest.target)
    here = circumstances(artifact, backend, options.threads)
    known = recorded_starts(artifact, backend)
    if known is not None and known.is_long:
        watch.note(f"starting on {backend} takes {duration_text(known.expected.seconds)}: {known}")
    began = time.monotonic()
    loaded = artifact
    if runs_one and wanted.sequences is None and _runs_one_at_a_time(artifact, here):
        loaded = Artifact(root, artifact.hashes, 1)
    with watch.steps(f"loading {name or path}") as report:
        tokens, compiling = artifact.tokens_path(), threading.Event()
        # Libraries compile shards without the GIL, so Python does the rest meanwhile, but not before.
        with ThreadPoolExecutor(1) as aside:
            rest = aside.submit(_load_the_rest, compiling, tokens, options)
            report(f"shards, on {backend}")
            try:
                verifier = open_verifier(loaded, backend, options.threads, options.workers, compiling.set)
            finally:
                compiling.set()
        try:
            tokenizer, suggested = rest.result()
        except BaseException:
            verifier.close()
            raise
    for correction in tokenizer.corrections:
        watch.note(f"{name or path}: {correction}")
    started = recorded_starts(artifact, backend)
    if known is None and started is not None and started.is_long:
        watch.note(f"{started}; `anespec doctor {root}` shows it again")
    return OpenedModel(artifact, tokenizer, verifier, here, began, suggested)


def _runs_one_at_a_time(artifact: "Artifact", here: "RunEnvironment") -> bool:
    from anespec.validate.kept import kept_exactness

    return artifact.manifest.sequences > 1 and kept_exactness(artifact, here, "quick") is None


def _load_the_rest(
    compiling: threading.Event, tokens: Path, options: "BackendOptions"
) -> "tuple[Tokenizer, SamplingParameters]":
    """Read the vocabulary and import what generating needs: the engine, and the draft source's compiled code,
    if it exists."""
    from anespec.runtime.drafters.kept_code import import_compiled, is_compiled
    from anespec.runtime.options import LoadOptions

    compiling.wait()
    found = _read_vocabulary(tokens)
    if isinstance(options, LoadOptions) and is_compiled(options.drafter):
        import_compiled(options.drafter)
    import anespec.runtime.drafters.memory.memories
    import anespec.runtime.drafters.registry
    import anespec.runtime.engine.engine
    import anespec.runtime.engine.service
    import anespec.runtime.text.templates.chosen
    import anespec.validate.check_parts  # noqa: F401

    return found


def _read_vocabulary(tokens: Path) -> "tuple[Tokenizer, SamplingParameters]":
    from anespec.gguf.container import GGUFFile
    from anespec.runtime.sampling.parameters import suggested_sampling
    from anespec.runtime.text.tokenizer import Tokenizer

    with GGUFFile(tokens) as file:
        return Tokenizer.from_gguf(file), suggested_sampling(file.metadata)


def make_source(
    options: "LoadOptions", tokenizer: "Tokenizer", open_memory: "OpenMemory", watch: ProgressCallbacks
) -> "DraftSource | None":
    """Return the draft source that the options select for a vocabulary; None if they select none.

    A source with a memory opens it. If the source must be compiled first and the caller waits for it, a note
    says so.

    Raises:
        RequestError: the options of a source contradict each other.
    """
    from anespec.runtime.drafters.registry import open_source

    tell_of_compiling(options.drafter, watch)
    return open_source(options, tokenizer, open_memory)


def tell_of_compiling(drafter: str, watch: ProgressCallbacks) -> None:
    """Write a note if the drafter must be compiled first, since that takes a while."""
    from anespec.runtime.drafters.kept_code import must_compile

    if must_compile(drafter):
        watch.note("drafting is compiled for this processor, once; that takes some ten seconds")


def start_source(
    options: "LoadOptions", tokenizer: "Tokenizer", open_memory: "OpenMemory"
) -> "DraftSource | None":
    """Return the draft source at once; a simpler one may make its first drafts (see StartingSource).

    Raises:
        RequestError: the options of a source contradict each other.
    """
    from anespec.runtime.drafters import registry

    return registry.start_source(options, tokenizer, open_memory)


def ask_while_closed(opened: OpenedModel, options: "BackendOptions", watch: ProgressCallbacks) -> OpenedModel:
    """Run the golden gate of a cached model, and one pass in a new process, while the artifact is closed.

    Both load the shards again, so the artifact is closed meanwhile to be in memory only once.

    Raises:
        GoldenGateError: the artifact does not compute what its GGUF means.
        ArtifactError: the artifact cannot be opened again.
    """
    from anespec.validate.check_parts import may_ask_golden
    from anespec.validate.kept import kept_exactness

    artifact, here = opened.artifact, opened.here
    asks_golden = is_cached(artifact.root) and may_ask_golden(artifact, here)
    asks_repeat = kept_exactness(artifact, here, "quick") is None
    if not asks_golden and not asks_repeat:
        return opened
    opened.verifier.close()
    if asks_golden:
        _require_golden(opened, options, watch)
    elsewhere = _run_elsewhere(opened, options, watch) if asks_repeat else None
    return replace(_opened_again(opened, options, watch, "loading the shards again"), elsewhere=elsewhere)


def _require_golden(opened: OpenedModel, options: "BackendOptions", watch: ProgressCallbacks) -> None:
    from anespec.validate.gates import find_source, golden_gate
    from anespec.validate.golden.figures import require_golden

    artifact, backend = opened.artifact, opened.here.backend
    with watch.shares("golden gate") as report:
        report("reading the source")
        source = find_source(artifact)
        verdict = golden_gate(artifact, source, backend, options.threads, report, options.workers)
        require_golden(verdict)


def _run_elsewhere(
    opened: OpenedModel, options: "BackendOptions", watch: ProgressCallbacks
) -> "Elsewhere | None":
    """Return the results of a pass in a new process; if that fails, write a note and return None."""
    from anespec.validate.exactness import repeat_process
    from anespec.validate.kept import why_exactness_is_unknown

    artifact, here = opened.artifact, opened.here
    watch.note(why_exactness_is_unknown(artifact, here))
    watch.note(
        "it is checked now, once: do guessed tokens (drafts) leave the text as it is on "
        f"{here.backend} with {counted(here.threads, 'thread')}?"
    )
    with watch.steps("exactness") as report:
        report("the same pass in a new process")
        try:
            return repeat_process.run_elsewhere(artifact, here, options.workers)
        except AnespecError as error:
            watch.note(str(error))
            return None


def exactness_here(
    opened: OpenedModel, options: "BackendOptions", watch: ProgressCallbacks
) -> tuple[OpenedModel, "ExactnessVerdict"]:
    """Return the open artifact and its exactness verdict here; measure and record a quick one if there is
    none.

    The artifact is opened again if it was measured in this process. Measuring can take minutes with a large
    model on a slow backend, so a note is written before and after.
    """
    from anespec.runtime.backends import BACKENDS
    from anespec.validate.gates import recorded_exactness
    from anespec.validate.kept import kept_exactness

    artifact, here = opened.artifact, opened.here
    verdict = kept_exactness(artifact, here, "quick")
    if verdict is not None:
        return opened, verdict

    def say_unkept(error: StorageError) -> None:
        watch.note(f"the exactness verdict could not be recorded ({error})")

    started = time.monotonic()
    with watch.shares("exactness") as report:
        verdict = recorded_exactness(
            artifact, opened.verifier, here, "quick", report, opened.elsewhere, say_unkept
        )
    watch.note(f"exactness: {verdict.standing}, measured in {duration_text(time.monotonic() - started)}")
    if not BACKENDS[here.backend].uses_threads:
        return opened, verdict
    # The gate's passes read every slot, and a library keeps the memory it took for them (2.3 GB instead of
    # 1.1, for 0.9 GB of weights).
    opened.verifier.close()
    return _opened_again(
        opened, options, watch, "loading the shards again, without what the gate took"
    ), verdict


def _opened_again(
    opened: OpenedModel, options: "BackendOptions", watch: ProgressCallbacks, note: str
) -> OpenedModel:
    """Open the closed artifact again; raise ArtifactError if that is not possible."""
    from anespec.runtime.backends import open_verifier

    with watch.steps("exactness") as report:
        report(note)
        return replace(
            opened,
            verifier=open_verifier(opened.artifact, opened.here.backend, options.threads, options.workers),
        )


def costs_here(opened: OpenedModel, proven: "Proven", watch: ProgressCallbacks) -> "PassCosts":
    """Return the costs of passes on this machine; measure and record them if there are none.

    Measuring takes seconds on a processor. On a Neural Engine, Core ML may first prepare every width in every
    process, which took 112 to 133 s each for 2 GB (ane-book, grade B).
    """
    from anespec.validate.costs import kept_costs, recorded_costs

    artifact, here = opened.artifact, opened.here
    costs = kept_costs(artifact, here, proven)
    if costs is not None:
        return costs

    def say_unkept(error: StorageError) -> None:
        watch.note(f"the costs of passes could not be recorded ({error})")

    with watch.shares("timing passes") as report:
        return recorded_costs(artifact, opened.verifier, here, proven, report, say_unkept)


def say_inexact(verdict: "ExactnessVerdict", options: "LoadOptions", watch: ProgressCallbacks) -> None:
    """Write a note if speculation may change the text, and say whether it is used."""
    if verdict.allows_speculation:
        return
    watch.note(
        f"speculation may change the text on {verdict.circumstances.backend} here (the exactness gate: "
        f"{verdict.standing}); "
        + ("speculating as --allow-inexact asks" if options.allow_inexact else "running without it")
    )
