"""Lock the work folder of an artifact for one conversion, and move the finished artifact to its path."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from anespec.convert.storage import FULL_DISK_ERRORS
from anespec.system.errors import StorageError, UsageError
from anespec.system.safe_files import Folder


class OutputTakenError(UsageError):
    """The final path was created or replaced during the conversion. The work folder is kept."""

    def __init__(self, output: Path) -> None:
        super().__init__(
            f"{output}: was created or replaced during the conversion, so it is not overwritten; "
            "move it away and run the same command again, which continues from here"
        )


def resolve_output(output: Path) -> Path:
    """Return the final path of an artifact for `output`; it ends in a name.

    Raises:
        StorageError: the path is a link, which the artifact would replace or follow unseen; it is the root,
            or it is not valid UTF-8.
    """
    try:
        str(output).encode()
    except UnicodeEncodeError:
        raise StorageError(f"{str(output)!r}: is not valid UTF-8; choose another path") from None
    if output.is_symlink():
        raise StorageError(
            f"{output}: is a link to {output.readlink()}; remove it, or give another path with -o"
        )
    if output.name not in ("", ".."):
        return output
    place = Path(os.path.realpath(output))
    if not place.name:
        raise StorageError(f"{output}: is the root folder; choose another path")
    return place


def output_stat(output: Path) -> os.stat_result | None:
    """Return the identity of the file or folder at the final path; None if there is none to read."""
    try:
        return output.lstat()
    except OSError:
        return None


def require_unchanged(output: Path, before: os.stat_result | None) -> None:
    """Raise OutputTakenError if the final path no longer has the identity `before`."""
    now = output_stat(output)
    if now is not None and (before is None or not os.path.samestat(now, before)):
        raise OutputTakenError(output)


@contextlib.contextmanager
def output_lock(work: Path, output: Path) -> Iterator[None]:
    """Lock the work folder of `output` against other conversions; the system releases it with the process.

    The folder is created, or taken over from an interrupted conversion after links in it are removed.

    Raises:
        StorageError: another conversion holds the lock, a file cannot be created, or a needed name is a link
            or belongs to another user.
        OSError: the file system fails otherwise.
    """
    lock_path = work.with_suffix(".lock")
    with contextlib.suppress(OSError):
        if not stat.S_ISREG(lock_path.lstat().st_mode):
            raise StorageError(f"{lock_path}: is not a lock file of anespec; remove it")
    _make_lock(lock_path, output)
    lock = FileLock(lock_path, timeout=0, mode=0o600)
    try:
        lock.acquire()
    except Timeout:
        raise StorageError(f"{work}: another conversion to the same path is running; wait for it") from None
    try:
        _claim(work, output)
        yield
    finally:
        lock_path.unlink(missing_ok=True)
        lock.release()


def _make_lock(path: Path, output: Path) -> None:
    """Create the lock file and its folders; FileLock would report a failure as another process's lock."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError as error:
        if error.errno in FULL_DISK_ERRORS:
            raise
        raise StorageError(
            f"{output}: cannot be written ({error.strerror}); choose another path with -o"
        ) from error


def _claim(work: Path, output: Path) -> None:
    with Folder.open(work.parent) as beside, beside.folder(work.name, create=True) as folder:
        folder.require_own()
        folder.remove_traps()
        # Checked now: a failure at the end of the conversion would lose its work.
        _require_own(beside, _put_aside(work))
        # A run that was killed between its last two steps has left the only artifact under this name.
        if output_stat(output) is not None:
            _remove_own(beside, _put_aside(work))


def discard_work(work: Path) -> None:
    """Remove the work folder, as far as possible."""
    with contextlib.suppress(OSError), Folder.open(work.parent) as beside:
        beside.remove(work.name)


def replace_output(work: Path, output: Path, before: os.stat_result | None) -> None:
    """Rename the finished folder to `output`; the old artifact `before` is removed only after that.

    Raises:
        OutputTakenError: `output` has changed since.
        OSError: the file system refuses; the old artifact is then unchanged.
    """
    require_unchanged(output, before)
    old = _put_aside(work)
    with Folder.open(output.parent) as beside:
        replaces = output_stat(output) is not None
        if replaces:
            beside.rename(output.name, old)
        try:
            # `output` may have changed between the check and the renaming; then the new one was put aside.
            if replaces:
                require_unchanged(output.with_name(old), before)
            beside.rename(work.name, output.name)
        except (OSError, OutputTakenError):
            if replaces:
                beside.rename(old, output.name)
            raise
        beside.sync()
        with contextlib.suppress(OSError, StorageError):
            _remove_own(beside, old)


def _put_aside(work: Path) -> str:
    """Return the temporary name of the artifact that is being replaced; a killed run may leave it."""
    return work.with_suffix(".replaced").name


def _remove_own(beside: Folder, name: str) -> None:
    if _require_own(beside, name):
        beside.remove(name)


def _require_own(beside: Folder, name: str) -> bool:
    """Return whether the folder exists; raise StorageError if it is a link or belongs to another user."""
    try:
        with beside.folder(name) as folder:
            folder.require_own()
    except FileNotFoundError:
        return False
    return True
