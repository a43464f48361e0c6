"""Find and remove downloaded GGUFs.

GGUFs from URLs are in anespec's cache folder (url/download.py), GGUFs from the Hugging Face hub in the cache
of its library, where other programs use them too.
"""

import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from anespec.gguf.parts import PartName, first_part
from anespec.models.hub.name import SCHEME
from anespec.models.url.download import FOLDER, KEPT, PARTIAL, PARTIAL_FACTS
from anespec.models.url.folder import LARGEST_FACTS, LOCK, Facts
from anespec.system.errors import StorageError
from anespec.system.safe_files import read_bounded
from anespec.system.user_folders import cache_folder


@dataclass(frozen=True)
class Downloaded:
    """A downloaded file: `name` is the URL, or hf:OWNER/REPO/FILE.gguf, of a model in parts the first.

    Removing it removes `paths` and frees `bytes`. `time` is the local time of the download. A file that is
    not `finished` is incomplete.
    """

    name: str
    paths: tuple[Path, ...]
    bytes: int
    time: datetime
    finished: bool = True

    @property
    def is_shared(self) -> bool:
        """Return whether other programs may use the file, too."""
        return self.name.startswith(SCHEME)

    def remove(self) -> None:
        """Remove the file from the disk.

        Raises:
            StorageError: the file is being downloaded now, or the file system refuses.
        """
        from filelock import FileLock, Timeout

        try:
            if self.is_shared:
                for path in self.paths:
                    path.unlink(missing_ok=True)
                return
            (folder,) = self.paths
            with FileLock(folder / LOCK, timeout=0, mode=0o600):
                shutil.rmtree(folder)
        except Timeout:
            raise StorageError(
                f"{self.name}: is being downloaded now; wait for the end of the download"
            ) from None
        except OSError as error:
            raise StorageError(f"{self.paths[0]}: cannot be removed ({error.strerror})") from error


def downloads() -> list[Downloaded]:
    """Return all downloads, the newest first; raise StorageError if there is no home folder."""
    return sorted((*_of_urls(), *_of_the_hub()), key=lambda each: each.time, reverse=True)


def _of_urls() -> Iterator[Downloaded]:
    root = cache_folder() / FOLDER
    for folder in root.iterdir() if root.is_dir() else ():
        for facts_name in (KEPT, PARTIAL_FACTS):
            if (facts := _facts(folder / facts_name)) is None:
                continue
            files = [path.stat() for path in folder.iterdir() if path.is_file() and not path.is_symlink()]
            size, time = sum(file.st_size for file in files), max(file.st_mtime for file in files)
            is_whole = facts_name == KEPT and not (folder / PARTIAL).exists()
            yield Downloaded(facts.url, (folder,), size, _local(time), is_whole)
            break


def _facts(path: Path) -> Facts | None:
    try:
        return Facts.model_validate_json(read_bounded(path, LARGEST_FACTS))
    except (OSError, StorageError, ValidationError):
        return None


def _of_the_hub() -> Iterator[Downloaded]:
    try:
        from huggingface_hub import CacheNotFound, constants, scan_cache_dir
    except ImportError:
        return
    try:
        found = scan_cache_dir(constants.HF_HUB_CACHE)
    except (CacheNotFound, OSError):
        return
    for repository in found.repos:
        links: dict[str, set[Path]] = defaultdict(set)
        blobs: dict[str, set[Path]] = defaultdict(set)
        files: dict[str, set[str]] = defaultdict(set)
        for revision in repository.revisions if repository.repo_type == "model" else ():
            for file in revision.files:
                if file.file_name.endswith(".gguf"):
                    path = file.file_path.relative_to(revision.snapshot_path).as_posix()
                    name = first_part(path)
                    files[name].add(path)
                    links[name].add(file.file_path)
                    blobs[name].add(file.blob_path)
        holders = Counter(blob for held in blobs.values() for blob in held)
        for name, held in blobs.items():
            # A blob with several names is removed with its last name.
            own = sorted(blob for blob in held if holders[blob] == 1)
            times = [blob.stat().st_mtime for blob in held if blob.is_file()]
            yield Downloaded(
                f"{SCHEME}{repository.repo_id}/{name}",
                (*sorted(links[name]), *own),
                sum(blob.stat().st_size for blob in own if blob.is_file()),
                _local(max(times, default=0)),
                (part := PartName.parse(name)) is None or len(files[name]) == part.count,
            )


def _local(time: float) -> datetime:
    return datetime.fromtimestamp(time, UTC).astimezone()
