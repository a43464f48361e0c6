"""The work folder and the final place of an artifact: one run at a time, all or nothing."""

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
    """Something was put at the final place while the run went on; its work is kept."""

    def __init__(self, output: Path) -> None:
        super().__init__(
            f"{output}: was put there or replaced while the run went on, so it stays; "
            "move it away and run the same command again, which goes on from here"
        )


def resolve_output(output: Path) -> Path:
    """Return the final path of an artifact for `output`, with the user's links followed.

    The path must end in a name, which `.` and `..` lack.

    Raises:
        StorageError: links lead back to themselves, or the name cannot be written in UTF-8.
    """
    try:
        str(output).encode()
    except UnicodeEncodeError:
        raise StorageError(f"{str(output)!r}: has bytes that are no UTF-8; choose another place") from None
    if output.name not in ("", "..") and not output.is_symlink():
        return output
    place = Path(os.path.realpath(output))
    if not place.name:
        raise StorageError(f"{output}: is the root of all folders; choose another place")
    if place.is_symlink():
        raise StorageError(
            f"{output}: is a link that leads back to itself; remove it or choose another place"
        )
    return place


def output_stat(output: Path) -> os.stat_result | None:
    """Return the identity of the final path's content; None if there is none, or it cannot be read."""
    try:
        return output.lstat()
    except OSError:
        return None


def require_unchanged(output: Path, before: os.stat_result | None) -> None:
    """Raise OutputTakenError if the final path's content is not `before`."""
    now = output_stat(output)
    if now is not None and (before is None or not os.path.samestat(now, before)):
        raise OutputTakenError(output)


@contextlib.contextmanager
def output_lock(work: Path, output: Path) -> Iterator[None]:
    """Hold the work folder of `output` against a second run; the lock goes with the process, however it ends.

    The folder is made, or taken over from an interrupted run without any link that may lie in it.

    Raises:
        StorageError: another run holds it, nothing can be made there, or a name that it needs is a link or
            another user's.
        OSError: the file system refuses.
    """
    lock_path = work.with_suffix(".lock")
    with contextlib.suppress(OSError):
        if not stat.S_ISREG(lock_path.lstat().st_mode):
            raise StorageError(f"{lock_path}: is not a file of anespec's; remove it")
    _make_lock(lock_path, output)
    lock = FileLock(lock_path, timeout=0, mode=0o600)
    try:
        lock.acquire()
    except Timeout:
        raise StorageError(f"{work}: another conversion to the same place is running; let it end") from None
    try:
        _claim(work, output)
        yield
    finally:
        lock_path.unlink(missing_ok=True)
        lock.release()


def _make_lock(path: Path, output: Path) -> None:
    """Make the file and the folders above it; FileLock takes what keeps it from that for another's lock."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError as error:
        if error.errno in FULL_DISK_ERRORS:
            raise
        raise StorageError(
            f"{output}: cannot be written ({error.strerror}); choose another place with -o"
        ) from error


def _claim(work: Path, output: Path) -> None:
    with Folder.open(work.parent) as beside, beside.folder(work.name, create=True) as folder:
        folder.require_own()
        folder.remove_traps()
        # Asked for now, since a run that fails as it ends has lost its work.
        _require_own(beside, _put_aside(work))
        # A run that was killed between its last two steps has left there the only artifact that there is.
        if output_stat(output) is not None:
            _remove_own(beside, _put_aside(work))


def discard_work(work: Path) -> None:
    """Remove the work folder, as far as that is possible."""
    with contextlib.suppress(OSError), Folder.open(work.parent) as beside:
        beside.remove(work.name)


def replace_output(work: Path, output: Path, before: os.stat_result | None) -> None:
    """Rename the finished folder to its place; the old content `before` is removed only after that.

    Raises:
        OutputTakenError: something else stands there now.
        OSError: the file system refuses; then what stood there stands there still.
    """
    require_unchanged(output, before)
    old = _put_aside(work)
    with Folder.open(output.parent) as beside:
        replaces = output_stat(output) is not None
        if replaces:
            beside.rename(output.name, old)
        try:
            # Between looking and renaming is a moment; what came in it is what now lies aside.
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
    """The name under which what is replaced waits for its end; a killed run may leave it."""
    return work.with_suffix(".replaced").name


def _remove_own(beside: Folder, name: str) -> None:
    if _require_own(beside, name):
        beside.remove(name)


def _require_own(beside: Folder, name: str) -> bool:
    """Return whether there is such a folder; raise StorageError if it is a link or another user's."""
    try:
        with beside.folder(name) as folder:
            folder.require_own()
    except FileNotFoundError:
        return False
    return True
