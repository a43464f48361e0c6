"""Open an artifact, run the pass of repeat_checks, and print the recordings, in a process of its own.

    python -P -m anespec.validate.exactness.repeat_process OPENING

OPENING is an Opening as JSON. The process ends when its standard input, a pipe from its parent, closes. It
holds the artifact in memory once: a backend that keeps what it compiled is closed before it compiles again.
"""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from anespec.manifests.known_hashes import KnownHashes
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import RunEnvironment
from anespec.runtime import backends
from anespec.runtime.backends.backend import Backend
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.system.errors import AnespecError
from anespec.validate.child_answer import answer_parent, child_answer
from anespec.validate.exactness.repeat_checks import Elsewhere, packed, recorded_pass, unpacked
from anespec.validate.opening import Opening
from anespec.validate.sample.prompts import prompt_ids

LONGEST_WAIT = 1800.0
"""The time limit in seconds for opening the artifact twice; only a machine that swaps takes longer."""

NEW_PROCESS, COMPILED_AGAIN = "in a new process", "compiled again"


def run_elsewhere(artifact: Artifact, here: RunEnvironment, workers: WorkerLimits | None = None) -> Elsewhere:
    """Return the recordings of the pass in a new process and compiled again, without keeping either open.

    `workers` are the limits of a backend with workers.

    Raises:
        AnespecError: the process failed.
    """
    opening = Opening(
        artifact=str(artifact.root.resolve()),
        backend=here.backend,
        threads=here.threads,
        workers=workers,
        sequences=artifact.sequences,
    )
    try:
        asked = (opening.model_dump_json(),)
        return unpacked(child_answer("anespec.validate.exactness.repeat_process", asked, LONGEST_WAIT))
    except AnespecError as error:
        raise AnespecError(
            f"{artifact.root}: the exactness gate could not run it in a new process on "
            f"{here.backend} ({error})"
        ) from None


def openings(artifact: Artifact, backend: Backend, threads: int) -> Elsewhere:
    """Run the pass in this process: opened as at every start, and compiled again.

    A backend that compiles whenever it opens is opened once, which counts as both.

    Raises:
        ArtifactError: see Backend.
    """
    prompts = prompt_ids(artifact)
    with closing(backend.open(artifact, threads)) as verifier:
        found = recorded_pass(verifier, prompts)
    again = backend.open_again(artifact, threads)
    if again is None:
        return {f"{NEW_PROCESS}, {COMPILED_AGAIN}": found}
    with closing(again):
        return {NEW_PROCESS: found, COMPILED_AGAIN: recorded_pass(again, prompts)}


def answer(arguments: Sequence[str]) -> bytes:
    """Return the recordings of an Opening, packed."""
    opening = Opening.model_validate_json(arguments[0])
    backend = backends.chosen_backend(opening.backend, workers=opening.workers)
    artifact = Artifact(Path(opening.artifact), KnownHashes(), opening.sequences)
    return packed(openings(artifact, backend, opening.threads))


if __name__ == "__main__":
    answer_parent(answer)
