"""A GGUF becomes an artifact of the cache: converted with the defaults, and judged by the gates."""

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from anespec import __version__
from anespec.build import Build, Entry
from anespec.conversion import open_plan, stopped
from anespec.manifests.errors import GoldenGateError, Interrupted, StorageError
from anespec.manifests.formatting import bytes_text, duration_text, printable
from anespec.model_cache import Display, sequences_to_run

if TYPE_CHECKING:
    from anespec.asked_gates import Gate
    from anespec.convert.plan import ConversionPlan
    from anespec.manifests.store import Artifact
    from anespec.manifests.verdicts import VerdictT
    from anespec.runtime.backends.worker.sharing import WorkerLimits

_log = logging.getLogger(__name__)


def prepare_model(
    gguf: Path,
    output: Path,
    build: Build,
    backend: str,
    threads: int | None,
    display: Display,
    workers: "WorkerLimits | None" = None,
) -> Entry:
    """Convert `gguf` to `output` and ask the gates; what an interrupted run has finished is kept.

    A failing golden gate does not raise, but stands in the entry; a model runs without exactness too.
    Raises like `resolve_artifact`.
    """
    from anespec.manifests.known_hashes import KnownHashes
    from anespec.manifests.store import Artifact

    _convert(gguf, output, build, display)
    # Judged as whoever asked will run it.
    artifact = Artifact(output, KnownHashes(), sequences_to_run(output, build.sequences))
    try:
        failure = _gate(artifact, gguf, backend, threads, workers, display)
    except KeyboardInterrupt:
        raise Interrupted("interrupted; what was converted is kept, and the next run goes on there") from None
    manifest = artifact.manifest
    formats = {kind.value for shard in manifest.shards for kind in shard.formats}
    return Entry(
        name=printable(gguf.stem),
        source_sha256=manifest.source.sha256,
        source_bytes=manifest.source.bytes,
        quantisation=manifest.source.quantisation,
        weights=tuple(sorted(formats)),
        bytes=sum(shard.bytes for shard in manifest.shards) + manifest.tokens.bytes,
        target=manifest.target,
        context=manifest.context,
        version=__version__,
        schema_version=manifest.schema_version,
        sequences=manifest.sequences,
        weight_choice=str(build.weights),
        usual_context=build.context is None,
        failure=failure,
    )


def _convert(gguf: Path, output: Path, build: Build, display: Display) -> None:
    from anespec.convert.options import ConvertOptions

    options = ConvertOptions(
        target=build.target,
        context=build.context,
        sequences=build.built_sequences,
        weights=build.weights,
    )
    with open_plan(gguf, options) as plan:
        _require_room(plan, gguf, output.parent)
        with display(f"converting {gguf.name}") as report:
            report("opening it", 0.0)
            from anespec.convert.pipeline import convert

            whole = max(1, plan.weight_bytes())
            try:
                done = convert(
                    plan,
                    output,
                    replace=True,
                    on_bytes=lambda done_bytes: report("building shards", done_bytes / whole),
                )
            except KeyboardInterrupt as interruption:
                raise stopped(interruption) from None
        _log.info("%s converted in %s", gguf, duration_text(done.seconds))


def _require_room(plan: "ConversionPlan", gguf: Path, folder: Path) -> None:
    """Raise StorageError where what is to be written is more than there is room for.

    What an earlier run has left is counted as room: it is kept, or gives way.
    """
    left = sum(path.lstat().st_size for path in folder.rglob("*"))
    room, needed = shutil.disk_usage(folder).free + left, plan.estimated_bytes()
    if needed > room:
        raise StorageError(
            f"{folder}: has room for {bytes_text(room)}, and {gguf.name} takes about {bytes_text(needed)}; "
            "make some (`anespec list` shows what `anespec rm` would free)"
        )


def _gate(
    artifact: "Artifact",
    gguf: Path,
    backend: str,
    threads: int | None,
    workers: "WorkerLimits | None",
    display: Display,
) -> str | None:
    """Ask the gates that were not asked yet; why the artifact must not be used, None where it may."""
    from anespec.asked_gates import Question, exactness_gate, golden_gate, residency_gate
    from anespec.runtime.backends import resolve_backend

    resolved = resolve_backend(backend, artifact.manifest.target)
    asked = Question(artifact, resolved, threads, gguf, workers)

    def verdict_of(name: str, gate: "Gate[VerdictT]") -> "VerdictT":
        verdict = gate.kept()
        if verdict is None:
            with display(f"{name} gate of {gguf.name}") as report:
                verdict = gate.measure(report)
        _log.info("%s: %s gate: %s", gguf, name, gate.answer(verdict).standing)
        return verdict

    golden = golden_gate(asked)
    try:
        golden.answer(verdict_of("golden", golden)).require()
    except GoldenGateError as error:
        return str(error)
    verdict_of("exactness", exactness_gate(asked, "quick"))
    verdict_of("residency", residency_gate(asked, False, None, None))
    return None
