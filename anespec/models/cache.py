"""Keep converted GGUFs in a cache: each is converted once, and found by its hash.

    CACHE/anespec/models/KEY/model.anespec the artifact CACHE/anespec/models/KEY/entry.json written when it is
    complete; its mtime is the time of the last use CACHE/anespec/models/KEY.lock locked during the conversion

KEY is derived from the GGUF's hash, the options of the conversion and anespec's version. A folder without an
entry is an interrupted conversion, which the next one continues. An artifact also serves requests for fewer
sequences than it has.
"""

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from anespec import __version__
from anespec.gguf import MAGIC
from anespec.gguf.other_weights import refuse_other_weights
from anespec.gguf.parts import require_parts, stem_of
from anespec.manifests.known_hashes import KnownHashes
from anespec.manifests.states import aligned
from anespec.manifests.store import model_sha256
from anespec.models.conversion import (
    Build,
    Entry,
    beyond_training,
    conversion_notes,
    free_name,
    open_plan,
    require_agreement,
    stopped,
)
from anespec.models.fetched import Display
from anespec.models.missing import missing_model
from anespec.models.remote import fetched
from anespec.system.errors import AnespecError, ArtifactError, StorageError, UsageError, unreadable
from anespec.system.formatting import bytes_text, duration_text, listed, printable, quoted
from anespec.system.progress import SILENT, ProgressCallbacks
from anespec.system.safe_files import Folder, open_file
from anespec.system.user_folders import cache_folder, private_folder

if TYPE_CHECKING:
    from filelock import BaseFileLock

    from anespec.convert.planning.plan import ConversionPlan
    from anespec.manifests.weight_choice import WeightChoice

MODELS_FOLDER = "models"
ARTIFACT_NAME = "model.anespec"
ENTRY_NAME = "entry.json"
LARGEST_ENTRY = 1 << 16

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CachedModel:
    """A model in the cache; without an `entry` it is an interrupted conversion."""

    key: str
    folder: Path
    entry: Entry | None

    @property
    def artifact(self) -> Path:
        """Return the path of the artifact."""
        return self.folder / ARTIFACT_NAME

    @property
    def name(self) -> str:
        """Return the name to show: that of the GGUF."""
        return self.entry.name if self.entry is not None else self.key

    @property
    def used(self) -> datetime:
        """Return the local time of the last use; the earliest possible time if unknown."""
        path = self.folder / ENTRY_NAME if self.entry is not None else self.folder
        try:
            return datetime.fromtimestamp(path.stat().st_mtime, UTC).astimezone()
        except (OSError, ValueError, OverflowError):
            # The entry was just removed, or its time is out of range.
            return datetime.fromtimestamp(0, UTC).astimezone()

    @property
    def size(self) -> int:
        """Return the bytes on disk, unfinished files included; files may change meanwhile."""
        total = 0
        for folder, _, names in os.walk(self.folder):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    total += Path(folder, name).lstat().st_size
        return total

    def is_called(self, name: str) -> bool:
        """Return whether a name or the beginning of a key refers to this model."""
        return stem_of(name) == self.name or (len(name) >= 4 and self.key.startswith(name))


def resolve_artifact(
    path: Path,
    *,
    context: int | None = None,
    sequences: int | None = None,
    weights: "WeightChoice | None" = None,
    longer: bool = False,
    watch: ProgressCallbacks = SILENT,
) -> Path:
    """Return the artifact's folder for `path`.

    A folder is returned unchanged; `Artifact` checks it. A remote file is downloaded first. A GGUF is
    converted for this machine if the cache has no conversion of it. A path that does not exist may be the
    name of a model in the cache. `context`, `sequences` and `weights` are requirements, None for any value,
    and `longer` allows a longer context: see Build.

    Raises:
        NotFoundError: the path does not exist.
        ArtifactError: the path is none of these.
        UsageError: an artifact was converted with other options, or several models have the name.
        GGUFError, UnsupportedModelError, RequestError: the GGUF cannot be converted, or not with these
        options.
        StorageError: the cache cannot be used, or its disk is full.
        MissingPackageError: a required package is not installed.
        Interrupted: ^C was pressed; finished shards are kept.
    """
    path = fetched(path, watch)
    build = Build.here(context, sequences, weights, longer=longer)
    if is_gguf(path):
        if build.context != context:
            watch.note(f"a context of {context} tokens is rounded up to {build.context}")
        cache = ModelCache()
        cache.require_whole(path)
        return cache.artifact_of(path, build, watch)
    artifact = path if path.exists() else cached_artifact(path)
    if artifact is None:
        raise missing_model(path)
    if not artifact.is_dir():
        refuse_other_weights(path)
        raise ArtifactError(f"{path}: is neither a GGUF nor the folder of an artifact")
    if (context, sequences, weights) != (None, None, None):
        from anespec.manifests.store import Artifact

        require_agreement(
            artifact,
            Artifact(artifact).manifest,
            build,
            weights_asked=weights is not None,
            may_have_more=is_cached(artifact),
        )
    if context is not None:
        _note_long_context(artifact, watch)
    return artifact


def is_cached(artifact: Path) -> bool:
    """Return whether an artifact's folder belongs to the cache."""
    with contextlib.suppress(StorageError, OSError):
        place = artifact.resolve()
        return place.name == ARTIFACT_NAME and place.parent.parent == ModelCache().root.resolve()
    return False


def sequences_to_run(artifact: Path, asked: int | None, usual: int = 1) -> int | None:
    """Return how many of an artifact's sequences may run at a time; None for all.

    A cached model may have more sequences than a verb needs, so it runs `asked`, or `usual` if that is None.
    """
    from anespec.manifests.store import Artifact

    if not is_cached(artifact):
        return None
    wanted = usual if asked is None else asked
    return wanted if wanted < Artifact(artifact).manifest.sequences else None


def cached_artifact(name: Path) -> Path | None:
    """Return the artifact of the cached model with this name; None if there is none.

    Raises:
        UsageError: several models have the name.
    """
    # Without a cache folder, the useful error is that the name is unknown.
    with contextlib.suppress(StorageError):
        found = ModelCache().named(str(name))
        return None if found is None else found.artifact
    return None


def is_gguf(path: Path) -> bool:
    """Return whether `path` is a file that begins like a GGUF; raise StorageError for a pipe or a device."""
    try:
        with open_file(path) as stream:
            return stream.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


class ModelCache:
    """The user's folder of converted models; safe to use from several processes at once."""

    def __init__(self, root: Path | None = None) -> None:
        """Use the cache in the folder `root`, which is created when needed; None for the user's cache."""
        self.root = cache_folder() / MODELS_FOLDER if root is None else root

    def require_whole(self, gguf: Path) -> None:
        """Check the tables of a GGUF whose hash is not known yet, before all of its bytes are read.

        Raises:
            GGUFError: the file is damaged, or longer than its tensors (a sparse file may have terabytes).
            StorageError: the file cannot be read.
        """
        from anespec.gguf.container import GGUFFile

        try:
            if _is_known(KnownHashes(self.root), gguf):
                return
        except OSError as error:
            raise unreadable(gguf, error) from error
        with GGUFFile(gguf):
            pass

    def artifact_of(self, gguf: Path, build: Build, watch: ProgressCallbacks) -> Path:
        """Return the artifact of a GGUF, converting it first if needed; raises like `resolve_artifact`."""
        with private_folder(self.root) as root:
            sha256 = self._hash(gguf, watch.shares)
            model = self._serving(root, build, sha256)
            if model is None:
                key = build.key(sha256)
                with self._lock(key, gguf, watch.shares):
                    model = self._serving(root, build, sha256) or self._make(root, key, gguf, build, watch)
            else:
                _log.info("%s was converted before: %s", gguf, model.artifact)
                if build.context is not None:
                    _note_long_context(model.artifact, watch)
        with contextlib.suppress(OSError):
            os.utime(model.folder / ENTRY_NAME)
        return model.artifact

    def models(self) -> list[CachedModel]:
        """Return all models, interrupted conversions included, the most recently used first.

        Raises:
            StorageError: the folder cannot be read, or belongs to another user.
        """
        if not self.root.is_dir():
            return []
        with private_folder(self.root) as root:
            found = self._all(root)
        return sorted(found, key=lambda model: model.used, reverse=True)

    def named(self, name: str) -> CachedModel | None:
        """Return the finished model with this name or key; None if there is none.

        Raises:
            UsageError: several models have the name.
        """
        found = [model for model in self.models() if model.entry is not None and model.is_called(name)]
        if len(found) > 1:
            keys = listed([model.key for model in found], "or")
            raise UsageError(
                f"{quoted(name)} is the name of several cached models; give the key of one: {keys}"
            )
        return found[0] if found else None

    def remove(self, model: CachedModel) -> None:
        """Remove a model from the disk.

        Raises:
            StorageError: the model is being converted now, or the file system refuses.
        """
        from filelock import Timeout

        try:
            with private_folder(self.root) as root, self._file_lock(model.key).acquire(timeout=0):
                root.remove(model.key)
                root.remove(f"{model.key}.lock")
        except Timeout:
            raise StorageError(
                f"{model.name}: is being converted now; wait for the end of the conversion"
            ) from None
        except OSError as error:
            raise StorageError(f"{model.folder}: cannot be removed ({error.strerror})") from error

    def _hash(self, gguf: Path, display: Display) -> str:
        hashes = KnownHashes(self.root)
        try:
            if _is_known(hashes, gguf):
                return model_sha256(gguf, hashes.file)
            with display(f"looking for {gguf.name} in the cache") as report:
                report("reading it")
                return model_sha256(gguf, hashes.file)
        except OSError as error:
            raise unreadable(gguf, error) from error

    def _all(self, root: Folder) -> list[CachedModel]:
        keys = [path.name for path in self.root.iterdir() if path.is_dir() and not path.is_symlink()]
        return [self._model(root, key) for key in keys]

    def _serving(self, root: Folder, build: Build, sha256: str) -> CachedModel | None:
        """Return the model with the fewest sequences, and of these with the shortest context, that satisfies
        the request; None if there is none."""
        fitting = [
            (model.entry.sequences, model.entry.context, model.key, model)
            for model in self._all(root)
            if model.entry is not None
            if build.is_served_by(model.entry, sha256) and model.artifact.is_dir()
        ]
        return min(fitting)[-1] if fitting else None

    def _model(self, root: Folder, key: str) -> CachedModel:
        try:
            entry = Entry.model_validate_json(root.read(f"{key}/{ENTRY_NAME}", LARGEST_ENTRY))
        except (OSError, StorageError, ValidationError):
            entry = None
        return CachedModel(key, self.root / key, entry)

    def _make(
        self, root: Folder, key: str, gguf: Path, build: Build, watch: ProgressCallbacks
    ) -> CachedModel:

        with root.folder(key, create=True) as folder:
            folder.make_private()
            try:
                output = self.root / key / ARTIFACT_NAME
                entry = prepare_model(gguf, output, build, watch)
            except BaseException:
                # A conversion that failed before its first file leaves no interrupted one.
                with contextlib.suppress(OSError):
                    (self.root / key).rmdir()
                raise
            try:
                # The lock keeps other processes from using the name meanwhile.
                with root.held():
                    others = [model.entry for model in self._all(root) if model.entry and model.key != key]
                    entry = entry.model_copy(update={"name": free_name(entry, key, others)})
                    folder.replace(ENTRY_NAME, entry.model_dump_json(indent=2).encode())
            except OSError as error:
                raise StorageError(f"{folder.path}: cannot be written ({error.strerror})") from error
        return CachedModel(key, self.root / key, entry)

    @contextlib.contextmanager
    def _lock(self, key: str, gguf: Path, display: Display) -> Iterator[None]:
        """Lock the model; wait if another process has the lock."""
        from filelock import Timeout

        lock = self._file_lock(key)
        try:
            try:
                lock.acquire(timeout=0)
            except Timeout:
                with display(f"waiting for {gguf.name}") as report:
                    report("another anespec converts it")
                    lock.acquire()
        except OSError as error:
            raise StorageError(f"{self.root}: cannot be locked ({error.strerror})") from error
        try:
            yield
        finally:
            lock.release()

    def _file_lock(self, key: str) -> "BaseFileLock":
        from filelock import FileLock

        return FileLock(self.root / f"{key}.lock", mode=0o600)


def _is_known(hashes: KnownHashes, gguf: Path) -> bool:
    """Return whether no file of a GGUF must be read for its hash; raises like `model_sha256`."""
    return None not in map(hashes.known, require_parts(gguf))


def prepare_model(gguf: Path, output: Path, build: Build, watch: ProgressCallbacks) -> Entry:
    """Convert `gguf` to `output`, reusing the finished shards of an interrupted run.

    Raises like `resolve_artifact`.
    """
    from anespec.manifests.store import Artifact

    has_usual_context = _convert(gguf, output, build, watch)
    artifact = Artifact(output)
    manifest = artifact.manifest
    formats = {kind.value for shard in manifest.shards for kind in shard.formats}
    return Entry(
        name=printable(stem_of(gguf.name)),
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


def _convert(gguf: Path, output: Path, build: Build, watch: ProgressCallbacks) -> bool:
    """Convert, and return whether the context is the default one."""
    from anespec.convert.options import ConvertOptions

    options = ConvertOptions(
        target=build.target,
        context=build.context,
        sequences=build.built_sequences,
        weights=build.weights,
    )
    with open_plan(gguf, options) as plan:
        _require_room(plan, gguf, output.parent)
        for note in conversion_notes(plan, gguf, output):
            watch.note(note)
        with watch.shares(f"converting {gguf.name}") as report:
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


def _note_long_context(artifact: Path, watch: ProgressCallbacks) -> None:
    """Write a note if an artifact's context is longer than its model was trained for."""
    from anespec.manifests.store import Artifact

    # Damage is an error when the artifact is opened.
    with contextlib.suppress(AnespecError):
        manifest = Artifact(artifact).manifest
        if manifest.context > aligned(trained := manifest.hyperparameters.trained_context):
            watch.note(beyond_training(manifest.context, trained))


def _require_room(plan: "ConversionPlan", gguf: Path, folder: Path) -> None:
    """Raise StorageError if the files to write need more than the free space.

    The space of an earlier run's files counts as free, since they are reused or replaced.
    """
    left = sum(path.lstat().st_size for path in folder.rglob("*"))
    room, needed = shutil.disk_usage(folder).free + left, plan.estimated_bytes()
    if needed > room:
        raise StorageError(
            f"{folder}: has room for {bytes_text(room)}, and {gguf.name} takes about {bytes_text(needed)}; "
            "free some space (`anespec list` shows what `anespec rm` would free)"
        )
