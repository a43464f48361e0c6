"""A GGUF becomes an artifact of the cache, converted with the defaults."""

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from anespec import __version__
from anespec.build import Build, Entry
from anespec.conversion import open_plan, stopped
from anespec.manifests.errors import StorageError
from anespec.manifests.formatting import bytes_text, duration_text, printable
from anespec.model_cache import Display

if TYPE_CHECKING:
    from anespec.convert.plan import ConversionPlan

_log = logging.getLogger(__name__)


def prepare_model(gguf: Path, output: Path, build: Build, display: Display) -> Entry:
    """Convert `gguf` to `output`; what an interrupted run has finished is kept.

    Raises like `resolve_artifact`.
    """
    from anespec.manifests.store import Artifact

    has_usual_context = _convert(gguf, output, build, display)
    artifact = Artifact(output)
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
        usual_context=has_usual_context,
    )


def _convert(gguf: Path, output: Path, build: Build, display: Display) -> bool:
    """Convert, and return whether the context is the one that a request without any would have."""
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
        return plan.has_usual_context


def _require_room(plan: "ConversionPlan", gguf: Path, folder: Path) -> None:
    """Raise StorageError if the files to write need more than the free space.

    Space of an earlier run's files counts as free: they are kept, or replaced.
    """
    left = sum(path.lstat().st_size for path in folder.rglob("*"))
    room, needed = shutil.disk_usage(folder).free + left, plan.estimated_bytes()
    if needed > room:
        raise StorageError(
            f"{folder}: has room for {bytes_text(room)}, and {gguf.name} takes about {bytes_text(needed)}; "
            "make some (`anespec list` shows what `anespec rm` would free)"
        )
