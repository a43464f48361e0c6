"""Record the load probe of a compiled shard: whether it loaded, and Core ML's error if it did not.

The record is a file beside the compiled shard and is removed with it, so it is valid for one machine, one
build of the system and one compiler. A failure that may be temporary (no memory, no answer) is not recorded,
so the next start tries again.
"""

import contextlib
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import ValidationError

from anespec.manifests.schema import Shard
from anespec.manifests.store import Artifact
from anespec.runtime.backends.coreml.compiled import (
    CompiledShard,
    Compiler,
    compiled_shard,
    discard,
    known_shard,
)
from anespec.runtime.backends.coreml.load_probe import Outcome
from anespec.runtime.backends.coreml.start_times import REUSE_FRACTION, Starts, StartTimes, added_up
from anespec.system.coreml_errors import error_sentence, known_error
from anespec.system.errors import ArtifactError, StorageError
from anespec.system.safe_files import Folder

LARGEST_OUTCOME = 1 << 16

_log = logging.getLogger(__name__)


def remembered(place: Path) -> Outcome | None:
    """Return the result of an earlier load probe, recorded in the file `place`; None if there is none."""
    try:
        with Folder.open(place.parent) as folder:
            return Outcome.model_validate_json(folder.read(place.name, LARGEST_OUTCOME))
    except (OSError, StorageError, ValidationError):
        return None


def remember(place: Path, outcome: Outcome) -> None:
    """Record a load probe, unless its failure may be temporary or the file cannot be written."""
    if outcome.by_itself or (outcome.error is not None and not lasts(outcome.error)):
        return
    _write(place, outcome)


def remember_start(compiled: CompiledShard, place: Path, start: StartTimes) -> None:
    """Record how long a shard took to start here, and log whether the first start's work was reused."""
    known = remembered(place) or Outcome()
    if known.first is None:
        _log.info("%s: first loaded by the process that runs it: %s", compiled.shard.path, start)
        _write(place, known.model_copy(update={"first": start}))
        return
    if known.last is None:
        is_reused = start.seconds < REUSE_FRACTION * known.first.seconds
        outcome_text = "reused the first one's work" if is_reused else "took as long as the first one"
        _log.info("%s: a second process %s: %s", compiled.shard.path, outcome_text, start)
    _write(place, known.model_copy(update={"last": start}))


def recorded_starts(places: Iterable[Path]) -> Starts | None:
    """Return the sum of the start times recorded in these files; None if a shard never started."""
    outcomes = [remembered(place) for place in places]
    first = [outcome.first for outcome in outcomes if outcome is not None and outcome.first is not None]
    last = [outcome.last for outcome in outcomes if outcome is not None and outcome.last is not None]
    if (all_first := added_up(first)) is None or len(first) < len(outcomes):
        return None
    return Starts(all_first, added_up(last) if len(last) == len(outcomes) else None)


def _write(place: Path, outcome: Outcome) -> None:
    with contextlib.suppress(OSError, StorageError), Folder.open(place.parent) as folder:
        folder.replace(place.name, outcome.model_dump_json().encode(), durable=False)


def lasts(text: str) -> bool:
    """Return whether a failure is permanent, as far as is known."""
    known = known_error(text)
    return known is None or known.lasting


def met_before(compiled: CompiledShard, place: Path) -> bool:
    """Return whether a load probe is recorded.

    Raises:
        ArtifactError: the recorded probe failed.
    """
    outcome = remembered(place)
    if outcome is not None and outcome.error is not None:
        raise refused(compiled, outcome.error, f"in an earlier load probe; to try again remove {place}")
    return outcome is not None


def refused(compiled: CompiledShard, text: str, note: str | None = None) -> ArtifactError:
    """Return the error to raise for Core ML's message `text` about a compiled shard."""
    sentence = f"{compiled.shard.path}: {error_sentence(text)}"
    return ArtifactError(f"{sentence} ({note})" if note else sentence)


def is_stale(compiled: CompiledShard, text: str) -> bool:
    """Return whether compiling again may fix the error: the compilation is an earlier one, and it is gone or
    the error is known to mean that it is stale."""
    known = known_error(text)
    return not compiled.made and (not compiled.path.is_dir() or (known is not None and known.stale))


class CompiledShards:
    """The compiled shards of an artifact, each with a record of its load probe in a file beside it.

    If an upgrade of the system made a compiled shard stale, it is compiled again, once (see `is_stale`).
    """

    def __init__(self, artifact: Artifact, compiler: Compiler, record: str) -> None:
        """Compile nothing yet; `record` is the suffix of the records' file names."""
        self._artifact = artifact
        self._compiler = compiler
        self._record = record

    def of(self, shard: Shard) -> CompiledShard:
        """Return a compiled shard, and compile it if needed; raises like `compiled_shard`."""
        return compiled_shard(self._artifact, shard, self._compiler, _log.info)

    def again(self, compiled: CompiledShard) -> CompiledShard:
        """Compile a stale shard again; raises like `compiled_shard`."""
        _log.warning("compiling %s again: Core ML cannot load the compiled shard", compiled.shard.path)
        discard(compiled)
        return self.of(compiled.shard)

    def record(self, compiled: CompiledShard) -> Path:
        """Return the path of a compiled shard's record."""
        return compiled.beside(self._record)

    def forget(self, shards: Sequence[Shard]) -> None:
        """Remove compiled shards and their records.

        Raises:
            StorageError: a file cannot be removed.
        """
        for shard in shards:
            discard(self.of(shard))

    def starts(self, shards: Sequence[Shard]) -> Starts | None:
        """Return how long earlier starts of these shards took; None if one of them never started here."""
        known = [known_shard(self._artifact, shard, self._compiler) for shard in shards]
        compiled = [each for each in known if each is not None]
        return recorded_starts(map(self.record, compiled)) if len(compiled) == len(known) else None
