"""Read and write files safely in folders where other users may have placed links or special files.

A folder is opened once, and everything below it is reached through the open folder (`dir_fd`). No link is
followed there. New files get unguessable names and must not exist. A file is replaced by a rename and never
overwritten, so a hard link to it keeps its content.
"""

import contextlib
import errno
import fcntl
import grp
import io
import os
import pwd
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Self

from anespec.system.errors import StorageError
from anespec.system.formatting import bytes_text

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_PRIVATE = 0o700
# Without O_NONBLOCK, opening a pipe without a writer would block.
_NON_BLOCKING = os.O_RDONLY | os.O_NONBLOCK

_MOST_LINKS = 40
"""The most links on the way to a path; the system follows as many."""

LONGEST_WAIT = 10.0
"""Seconds to wait for a locked folder: any process may lock it and keep it for ever."""
SECONDS_BETWEEN_TRIES = 0.01


class Folder:
    """An open folder. Names refer to its direct entries, unless documented as relative paths.

    Every method raises OSError if the file system refuses, and StorageError if a link, or something that is
    neither file nor folder, is in the way.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """Take over an open descriptor; messages show `path`."""
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: Path, *, follow: bool = True) -> Self:
        """Open a folder. If `follow` is True, `path` itself may be a link, as for paths that users type."""
        if follow:
            return cls(path, os.open(path, _DIRECTORY))
        with _links_refused(path, None, str(path)):
            return cls(path, os.open(path, _DIRECTORY | os.O_NOFOLLOW))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        os.close(self._descriptor)

    def folder(self, name: str, *, create: bool = False, mode: int = 0o777) -> "Folder":
        """Open the folder `name`; `create` makes it, with the permissions `mode`, if it is missing."""
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, mode, dir_fd=self._descriptor)
        path = self.path / name
        with _links_refused(path, self._descriptor, name):
            return Folder(path, os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self._descriptor))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder to read and replace a file; do nothing if the file system has no locks."""
        with self._locked(fcntl.LOCK_EX, LONGEST_WAIT):
            yield

    @contextlib.contextmanager
    def create(self, relative: str, mode: int = 0o666) -> Iterator[BinaryIO]:
        """Create a file to be written, and the folders on its way; the file must not exist."""
        first, _, rest = relative.partition("/")
        if rest:
            with self.folder(first, create=True) as below, below.create(rest, mode) as stream:
                yield stream
        else:
            with os.fdopen(os.open(first, _NEW_FILE, mode, dir_fd=self._descriptor), "wb") as stream:
                yield stream

    def replace(self, name: str, content: bytes, *, durable: bool = True) -> None:
        """Replace a file atomically: a reader sees the old content or the new content, never a part.

        A `durable` file is on the disk before it gets its name, so a crash leaves no partial file either.
        """
        self.replace_parts(name, (content,), durable=durable)

    def replace_parts(
        self, name: str, parts: Iterable[bytes | memoryview], *, durable: bool = True, mode: int = 0o666
    ) -> None:
        """Replace a file with content that comes in parts; `mode` is the file's permissions."""
        with self.replacing(name, durable=durable, mode=mode) as stream:
            stream.writelines(parts)

    @contextlib.contextmanager
    def replacing(self, name: str, *, durable: bool = True, mode: int = 0o666) -> Iterator[BinaryIO]:
        """Replace a file with what the block writes, in any order; the old file stays if the block fails."""
        self._require_no_other(name)
        partial = f".{secrets.token_hex(16)}.partial"
        try:
            with self.create(partial, mode) as stream:
                yield stream
                stream.flush()
                if durable:
                    os.fsync(stream.fileno())
            os.replace(partial, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial, dir_fd=self._descriptor)
        if durable:
            os.fsync(self._descriptor)

    def _require_no_other(self, name: str) -> None:
        mode = _mode(name, self._descriptor)
        if mode is not None and not stat.S_ISREG(mode):
            raise StorageError(f"{self.path / name}: is {_kind(mode)}, which is not replaced; remove it")

    def require_replaceable(self, name: str) -> None:
        """Raise as `replace` would if `name` cannot be written; leave nothing behind."""
        self._require_no_other(name)
        partial = f".{secrets.token_hex(16)}.partial"
        with self.create(partial):
            os.unlink(partial, dir_fd=self._descriptor)

    def read(self, relative: str, largest: int) -> bytes:
        """Return the bytes of a file; raise StorageError if it has more than `largest` bytes."""
        with contextlib.ExitStack() as stack:
            folder, (*parents, name) = self, PurePosixPath(relative).parts
            for parent in parents:
                folder = stack.enter_context(folder.folder(parent))
            path = self.path / relative
            with _links_refused(path, folder._descriptor, name):
                _require_file(path, os.stat(name, dir_fd=folder._descriptor, follow_symlinks=False).st_mode)
                opened = os.open(name, _NON_BLOCKING | os.O_NOFOLLOW, dir_fd=folder._descriptor)
            return _read(opened, path, largest)

    def reader(self, name: str) -> io.BufferedReader:
        """Open a file for reading."""
        path = self.path / name
        with _links_refused(path, self._descriptor, name):
            _require_file(path, os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_mode)
            return _checked(os.open(name, _NON_BLOCKING | os.O_NOFOLLOW, dir_fd=self._descriptor), path)

    def new_file(self, name: str, mode: int = 0o666) -> io.FileIO:
        """Create a file and open it for unbuffered writing; it must not exist."""
        return os.fdopen(os.open(name, _NEW_FILE, mode, dir_fd=self._descriptor), "wb", buffering=0)

    def own_file(self, name: str) -> io.BufferedRandom:
        """Open a file of this user for reading and writing; create it if it is missing.

        Also raises StorageError if the file belongs to another user or has a second hard link: someone who
        can write to the folder could have put it there, so that another file is overwritten.
        """
        path = self.path / name
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        with _links_refused(path, self._descriptor, name):
            descriptor = os.open(name, flags, 0o666, dir_fd=self._descriptor)
        try:
            status = os.fstat(descriptor)
            _require_file(path, status.st_mode)
            if not _is_own(status) or status.st_nlink != 1:
                raise StorageError(f"{path}: belongs to another user, or has a second hard link; remove it")
        except BaseException:
            os.close(descriptor)
            raise
        return os.fdopen(descriptor, "r+b")

    def replace_link(self, name: str, target: str) -> None:
        """Create a symbolic link to `target`, unchecked; it replaces a file or link at `name`."""
        partial = f".{secrets.token_hex(16)}.partial"
        os.symlink(target, partial, dir_fd=self._descriptor)
        try:
            self.rename(partial, name)
        except BaseException:
            os.unlink(partial, dir_fd=self._descriptor)
            raise

    def names(self) -> list[str]:
        """Return the folder's entries, sorted by name."""
        with os.scandir(self._descriptor) as entries:
            return sorted(entry.name for entry in entries)

    def status(self, name: str) -> os.stat_result:
        """Return the status of a name, without following links."""
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)

    def mode(self, name: str) -> int | None:
        """Return the status of a name, without following links; None if it does not exist."""
        return _mode(name, self._descriptor)

    @contextlib.contextmanager
    def alone(self, work: str, *, wait: float = 0.0, shared: bool = False) -> Iterator[None]:
        """Lock out other processes that use this lock, until the block or this process ends.

        `wait` is in seconds. `shared` locks do not lock out each other. Raises StorageError if another
        process has the lock; `work` names its work in the message, e.g. `another self-test`.
        """
        with self._locked(fcntl.LOCK_SH if shared else fcntl.LOCK_EX, wait) as is_locked:
            if not is_locked:
                raise StorageError(f"{self.path}: {work} is running there; wait for it, or stop it")
            yield

    @contextlib.contextmanager
    def _locked(self, kind: int, wait: float) -> Iterator[bool]:
        deadline = time.monotonic() + wait  # a new descriptor, since a lock belongs to its descriptor
        descriptor = os.open(".", _DIRECTORY, dir_fd=self._descriptor)
        try:
            while not (is_locked := _locked(descriptor, kind)) and time.monotonic() < deadline:
                time.sleep(SECONDS_BETWEEN_TRIES)
            yield is_locked
        finally:
            os.close(descriptor)

    def remove_content(self) -> None:
        """Remove all entries of the folder."""
        for name in self.names():
            self.remove(name)

    def remove(self, name: str) -> None:
        """Remove a file, a link (not its target) or a folder with its content, if it exists."""
        mode = _mode(name, self._descriptor)
        if mode is not None and stat.S_ISDIR(mode):
            shutil.rmtree(name, dir_fd=self._descriptor)
        elif mode is not None:
            os.unlink(name, dir_fd=self._descriptor)

    def rename(self, old: str, new: str) -> None:
        """Rename an entry of this folder; an existing file, link or empty folder at `new` is replaced."""
        os.rename(old, new, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def move(self, name: str, to: "Folder", new: str) -> None:
        """Move an entry to another folder of the same file system, else as `rename`."""
        os.rename(name, new, src_dir_fd=self._descriptor, dst_dir_fd=to._descriptor)

    def sync(self) -> None:
        """Wait until new and changed names in this folder are on the disk."""
        os.fsync(self._descriptor)

    def is_own(self) -> bool:
        """Return whether the folder belongs to this user."""
        return _is_own(os.fstat(self._descriptor))

    def require_own(self) -> None:
        """Raise StorageError if the folder belongs to another user, who could change it at any time."""
        if not self.is_own():
            raise StorageError(f"{self.path}: belongs to another user; remove it or choose another place")

    def require_unshared(self) -> None:
        """Raise StorageError if the folder belongs to another user, or others can write to it."""
        self.require_own()
        if _is_shared(os.fstat(self._descriptor)):
            raise StorageError(
                f"{self.path}: other users can change its content; forbid it with `chmod go-w`, or "
                "choose another place"
            )

    def make_private(self) -> None:
        """Remove all permissions of other users; raise StorageError if the folder belongs to another user."""
        self.require_own()
        if stat.S_IMODE(os.fstat(self._descriptor).st_mode) != _PRIVATE:
            os.fchmod(self._descriptor, _PRIVATE)

    def remove_traps(self) -> None:
        """Remove entries of other users, and entries that are neither a folder nor a file with one link."""
        for _, folders, files, descriptor in os.fwalk(".", dir_fd=self._descriptor):
            for name in (*folders, *files):
                # Another process may remove an entry meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    if not stat.S_ISDIR(status.st_mode):
                        if not _is_own(status) or not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                            os.unlink(name, dir_fd=descriptor)
                    elif not _is_own(status):
                        folders.remove(name)
                        shutil.rmtree(name, dir_fd=descriptor)


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid()


def write_atomically(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a text file as `Folder.replace` does; its folder may be a link.

    Raises:
        OSError: the file system refuses.
        StorageError: the path exists and is not a file.
    """
    with Folder.open(path.parent) as folder:
        folder.replace(path.name, text.encode(), durable=durable)


def require_writable(path: Path) -> None:
    """Check that `write_atomically` can write a file, before starting the work for it.

    Raises:
        StorageError: the file cannot be written.
    """
    try:
        with Folder.open(path.parent) as folder:
            folder.require_replaceable(path.name)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror}); choose another place") from error


def read_bounded(path: Path, largest: int) -> bytes:
    """Return the bytes of a file that a user named.

    Raises:
        OSError: the file cannot be read.
        StorageError: it has more than `largest` bytes, or is a pipe or a device, which may never end.
    """
    with open_file(path) as stream:
        return _bounded(stream, path, largest)


def open_file(path: Path) -> io.BufferedReader:
    """Open a file that a user named for reading; it may be a link.

    Raises:
        OSError: the file cannot be read.
        StorageError: the file is a pipe or a device, which may never end.
    """
    _require_file(path, path.stat().st_mode)
    return _checked(os.open(path, _NON_BLOCKING), path)


def open_plain_file(path: Path) -> io.BufferedReader:
    """Like `open_file`, but the name itself must not be a link."""
    with _links_refused(path, None, str(path)):
        _require_file(path, path.lstat().st_mode)
        return _checked(os.open(path, _NON_BLOCKING | os.O_NOFOLLOW), path)


def first_link(root: Path, relative: str) -> Path | None:
    """Return the first part of the path `relative` to `root` that is a link; None if there is none."""
    path = root
    for part in PurePosixPath(relative).parts:
        path = path / part
        if path.is_symlink():
            return path
    return None


def changeable_by_others(path: Path) -> Path | None:
    """Return the first folder or link on the way to `path` that a user other than root and this one can
    change.

    A user who can write to a folder can replace its entries, unless the folder is sticky. Links are followed,
    and the folders on their way are checked, too.

    Raises:
        OSError: a part of the path is missing or cannot be inspected.
    """
    root = Path(path.absolute().anchor)
    here, waiting, links = root, [*reversed(path.absolute().parts[1:])], 0
    found = root.lstat()
    while True:
        if found.st_uid not in (0, os.geteuid()) or (stat.S_ISDIR(found.st_mode) and _is_shared(found)):
            return here
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            target = here.readlink()
            here = root if target.is_absolute() else here.parent
            waiting += reversed([part for part in target.parts if part != target.anchor])
        if not waiting:
            return None
        name = waiting.pop()
        here = here.parent if name == ".." else here / name
        found = here.lstat()


def require_safe_to_run(path: Path, what: str, variable: str) -> None:
    """Raise StorageError if another user can replace `what`, which is about to be run.

    `variable` is the environment variable that selects another place.

    Raises:
        OSError: a part of the path is missing or cannot be inspected.
    """
    shared = changeable_by_others(path)
    if shared is not None:
        raise StorageError(
            f"{shared}: other users can change its content, and {what} would be run from there; "
            f"forbid it with `chmod go-w`, or set {variable} to a folder of your own"
        )


def _is_shared(folder: os.stat_result) -> bool:
    """Return whether other users can remove or replace entries of the folder."""
    if folder.st_mode & stat.S_ISVTX:
        return False
    if folder.st_mode & stat.S_IWOTH:
        return True
    return bool(folder.st_mode & stat.S_IWGRP) and not _is_private_group(folder.st_gid)


def _is_private_group(group: int) -> bool:
    """Return whether this user alone is in a group, for systems with a group of the same name for each user.

    Such systems create group-writable folders. Root's group does not count: users are added to it.
    """
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    is_named_alike = user.pw_gid == group and user.pw_name == found.gr_name
    return user.pw_uid != 0 and is_named_alike and set(found.gr_mem) <= {user.pw_name}


def _locked(descriptor: int, kind: int) -> bool:
    """Return whether to stop waiting: the folder is locked now, or the file system has no locks.

    filelock would find its file by path. This locks the open folder itself, which cannot be swapped, and
    leaves no file in it.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _read(descriptor: int, path: Path, largest: int) -> bytes:
    with _checked(descriptor, path) as stream:
        return _bounded(stream, path, largest)


def _bounded(stream: io.BufferedReader, path: Path, largest: int) -> bytes:
    data = stream.read(largest + 1)
    if len(data) > largest:
        raise StorageError(f"{path}: is larger than {bytes_text(largest)}, the most that is read; pass less")
    return data


def _checked(descriptor: int, path: Path) -> io.BufferedReader:
    """Check an opened file again, since its name may have changed its target before the opening."""
    try:
        _require_file(path, os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def _require_file(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if stat.S_ISLNK(mode):
        raise _link_refused(path)
    if not stat.S_ISREG(mode):
        raise StorageError(f"{path}: is {_kind(mode)}; save its output to a file first")


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a link"
    return "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"


def _mode(name: str, descriptor: int | None) -> int | None:
    """Return the status of a name, without following links; None if it does not exist."""
    try:
        return os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def _link_refused(path: Path) -> StorageError:
    return StorageError(
        f"{path}: is a link, and links are not followed there; replace it by its target, or remove it"
    )


@contextlib.contextmanager
def _links_refused(path: Path, descriptor: int | None, name: str) -> Iterator[None]:
    """Turn the error of opening a link into a StorageError; systems use several error numbers for it."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR):
            mode = _mode(name, descriptor)
            if mode is not None and stat.S_ISLNK(mode):
                raise _link_refused(path) from None
        raise
