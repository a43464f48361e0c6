"""An artifact made ready to generate, as far as the exactness gate allows here."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.console import notes, step_progress, timed_progress
from anespec.leaving import keep
from anespec.manifests.errors import StorageError
from anespec.manifests.formatting import counted, duration_text
from anespec.model_cache import resolve_artifact

if TYPE_CHECKING:
    from anespec.manifests.store import Artifact
    from anespec.manifests.verdicts import ExactnessVerdict
    from anespec.runtime.backends.verifier import ArtifactVerifier
    from anespec.runtime.drafters import Drafter
    from anespec.runtime.engine import Engine
    from anespec.runtime.text.tokenizer import Tokenizer

DRAFTERS = ("none", "lookup")


@dataclass(frozen=True)
class Session:
    """An artifact ready to generate."""

    verifier: "ArtifactVerifier"
    engine: "Engine"
    tokenizer: "Tokenizer"
    backend: str
    load_seconds: float


def open_session(
    path: Path,
    backend: str,
    threads: int | None = None,
    allow_inexact: bool = False,
    quiet: bool = True,
    check: Callable[[Session], None] = lambda _: None,
) -> Session:
    """Load an artifact, read or measure what is proven of it here, and set up an engine accordingly.

    `path` may be a GGUF (see `resolve_artifact`).

    `check` may refuse what is to be generated, by raising, before minutes are spent on measuring; its session
    has an engine that only takes requests.
    """
    from anespec.manifests.gguf_file import GGUFFile
    from anespec.manifests.store import Artifact
    from anespec.manifests.verdicts import Invariance
    from anespec.runtime.backends import open_verifier, resolve_backend
    from anespec.runtime.engine import Engine
    from anespec.runtime.text.tokenizer import Tokenizer

    display = partial(timed_progress, shown=not quiet)
    path = resolve_artifact(path, backend=backend, threads=threads, display=display)
    started = time.monotonic()
    artifact = Artifact(path)
    backend = resolve_backend(backend)
    with step_progress(f"loading {path}", shown=not quiet) as report:
        report("vocabulary")
        with GGUFFile(artifact.tokens_path()) as tokens:
            tokenizer = Tokenizer.from_gguf(tokens)
        report(f"shards, on {backend}")
        verifier = open_verifier(artifact, backend, threads)
    try:
        untried = Engine(verifier, speculate=False, wide_prefill=False)
        check(Session(verifier, untried, tokenizer, backend, time.monotonic() - started))
        verdict = _verdict(artifact, verifier, backend, threads, quiet)
    except BaseException:
        keep(verifier)
        raise
    if not verdict.allows_speculation:
        notes().print(
            f"note: speculation may change the text on {backend} here (the exactness gate: "
            f"{verdict.standing}); "
            + ("speculating as --allow-inexact asks" if allow_inexact else "running without it"),
            style="yellow",
        )
    speculates = verdict.allows_speculation or allow_inexact
    engine = Engine(
        verifier,
        speculate=speculates,
        wide_prefill=verdict.proves(Invariance.WIDTH),
        region_independent=verdict.proves(Invariance.REGION),
        # A prefix that an earlier prompt left was cut into other blocks, beside other rows.
        reuse_prefixes=speculates,
    )
    return Session(verifier, engine, tokenizer, backend, time.monotonic() - started)


def _verdict(
    artifact: "Artifact", verifier: "ArtifactVerifier", backend: str, threads: int | None, quiet: bool
) -> "ExactnessVerdict":
    """The recorded exactness verdict for here; measured in its quick form, and recorded, where none is.

    That can take minutes with a large model on a slow backend, so it is said before and after.
    """
    from anespec.runtime.backends import circumstances
    from anespec.validate.gates import recorded_exactness
    from anespec.validate.kept import kept_exactness, why_exactness_is_unknown

    here = circumstances(artifact, backend, threads)
    verdict = kept_exactness(artifact, here, "quick")
    if verdict is not None:
        return verdict
    where = f"{here.backend} with {counted(here.threads, 'thread')}"
    notes().print(
        f"note: {why_exactness_is_unknown(artifact, here)}\n"
        f"note: it is measured now, once: may speculation run on {where}?",
        style="yellow",
    )
    started = time.monotonic()
    with timed_progress("exactness", shown=not quiet) as report:
        verdict = recorded_exactness(artifact, verifier, here, "quick", report, _say_unkept)
    took = duration_text(time.monotonic() - started)
    notes().print(f"note: exactness: {verdict.standing}, measured in {took}", style="yellow")
    return verdict


def _say_unkept(error: StorageError) -> None:
    notes().print(f"note: the exactness verdict is not kept ({error})", style="yellow")


def make_drafter(name: str) -> "Drafter | None":
    """A fresh drafter by its name on the command line; None for `none`."""
    if name == "none":
        return None
    from anespec.runtime.drafters.lookup import LookupDrafter

    return LookupDrafter()
