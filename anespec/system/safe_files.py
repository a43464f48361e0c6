"""Read and write files safely in folders where other users may have placed traps.

A folder is opened once, and everything below it is reached through the open folder (`dir_fd`). No link is
followed there, new files get unguessable names and must not exist, and a file that is replaced is renamed
over, never written into: another name of it (a hard link) keeps what it held.
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
from types import TracebackType
from typing import BinaryIO, Self

from anespec.system.errors import StorageError
from anespec.system.formatting import bytes_text

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_PRIVATE = 0o700
# An ordinary open of a pipe without a writer would block.
_AT_ONCE = os.O_RDONLY | os.O_NONBLOCK

_MOST_LINKS = 40
"""On the way to a path; as many as the system follows."""

LONGEST_WAIT = 10.0
"""Seconds for a folder that another process holds; any process may lock it, and keep it for ever."""
SECONDS_BETWEEN_TRIES = 0.01


class Folder:
    """An open folder. Names refer to its direct entries, unless documented as relative paths.

    Every method raises OSError where the file system refuses, and StorageError where a link, or something
    that is neither file nor folder, is in the way.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """Take over an open descriptor; `path` is what messages call it."""
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: Path, *, follow: bool = True) -> Self:
        """Open a folder; `follow` says whether its own name may be a link, as what a person types may."""
        if follow:
            return cls(path, os.open(path, _DIRECTORY))
        with _links_refused(path, None, str(path)):
            return cls(path, os.open(path, _DIRECTORY | os.O_NOFOLLOW))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """Hold a lock for reading and replacing a file; without the lock if the file system has none."""
        with self._locked(fcntl.LOCK_EX, LONGEST_WAIT):
            yield

    @contextlib.contextmanager
    def create(self, relative: str, mode: int = 0o666) -> Iterator[BinaryIO]:
        """A new file to be written, in folders below this one, which are made; it must not exist."""
        first, _, rest = relative.partition("/")
        if rest:
            with self.folder(first, create=True) as below, below.create(rest, mode) as stream:
                yield stream
        else:
            with os.fdopen(os.open(first, _NEW_FILE, mode, dir_fd=self._descriptor), "wb") as stream:
                yield stream

    def replace(self, name: str, content: bytes, *, durable: bool = True) -> None:
        """Write a file so that a reader sees the old or the new one, never a part.

        A `durable` one is on the disk before it has its name, so that a crash leaves no half file either.
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
        """The same for what is written in the block, in any order; the old file stays where that fails."""
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
        """Raise, as `replace` does, where nothing may be written there; nothing is left of the try."""
        self._require_no_other(name)
        partial = f".{secrets.token_hex(16)}.partial"
        with self.create(partial):
            os.unlink(partial, dir_fd=self._descriptor)

    def read(self, relative: str, largest: int) -> bytes:
        """The bytes of a file that ought to have `largest` at most; raises StorageError where it has more."""
        with contextlib.ExitStack() as stack:
            folder, (*parents, name) = self, PurePosixPath(relative).parts
            for parent in parents:
                folder = stack.enter_context(folder.folder(parent))
            path = self.path / relative
            with _links_refused(path, folder._descriptor, name):
                _require_file(path, os.stat(name, dir_fd=folder._descriptor, follow_symlinks=False).st_mode)
                opened = os.open(name, _AT_ONCE | os.O_NOFOLLOW, dir_fd=folder._descriptor)
            return _read(opened, path, largest)

    def reader(self, name: str) -> io.BufferedReader:
        """A file, opened for reading."""
        path = self.path / name
        with _links_refused(path, self._descriptor, name):
            _require_file(path, os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_mode)
            return _checked(os.open(name, _AT_ONCE | os.O_NOFOLLOW, dir_fd=self._descriptor), path)

    def new_file(self, name: str, mode: int = 0o666) -> io.FileIO:
        """A new file, open for writing: what is written is the system's at once. It must not exist."""
        return os.fdopen(os.open(name, _NEW_FILE, mode, dir_fd=self._descriptor), "wb", buffering=0)

    def own_file(self, name: str) -> io.BufferedRandom:
        """A file of this user's, open for reading and writing with what it holds; made where it is missing.

        Raises StorageError also where it is another user's, or one that has a second name elsewhere: who may
        write into the folder could have laid it there, so that something else is overwritten.
        """
        path = self.path / name
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        with _links_refused(path, self._descriptor, name):
            descriptor = os.open(name, flags, 0o666, dir_fd=self._descriptor)
        try:
            status = os.fstat(descriptor)
            _require_file(path, status.st_mode)
            if not _is_own(status) or status.st_nlink != 1:
                raise StorageError(f"{path}: is another user's, or has a second name elsewhere; remove it")
        except BaseException:
            os.close(descriptor)
            raise
        return os.fdopen(descriptor, "r+b")

    def replace_link(self, name: str, target: str) -> None:
        """Make a link to `target`, which is not looked at; a file or a link at `name` is gone then."""
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

        `wait` is in seconds; a `shared` lock does not lock out others that are shared. Raises StorageError
        where one is in; `work` says what it does, e.g. `another self-test`.
        """
        with self._locked(fcntl.LOCK_SH if shared else fcntl.LOCK_EX, wait) as is_locked:
            if not is_locked:
                raise StorageError(f"{self.path}: {work} is running there; let it end, or end it")
            yield

    @contextlib.contextmanager
    def _locked(self, kind: int, wait: float) -> Iterator[bool]:
        deadline = time.monotonic() + wait  # the descriptor is its own, since a lock goes with that
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
        """Remove a file, a link (not what it names) or a folder with all that is in it, if it is there."""
        mode = _mode(name, self._descriptor)
        if mode is not None and stat.S_ISDIR(mode):
            shutil.rmtree(name, dir_fd=self._descriptor)
        elif mode is not None:
            os.unlink(name, dir_fd=self._descriptor)

    def rename(self, old: str, new: str) -> None:
        """Rename an entry of this folder; an existing file, link or empty folder at `new` is replaced."""
        os.rename(old, new, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def move(self, name: str, to: "Folder", new: str) -> None:
        """Move what lies in this folder to another one of the same file system; else as `rename`."""
        os.rename(name, new, src_dir_fd=self._descriptor, dst_dir_fd=to._descriptor)

    def sync(self) -> None:
        """Wait until names given in this folder are on the disk."""
        os.fsync(self._descriptor)

    def is_own(self) -> bool:
        """Return whether the folder belongs to this user; another user's may change at any time."""
        return _is_own(os.fstat(self._descriptor))

    def require_own(self) -> None:
        """Raise StorageError where the folder belongs to another user, who could change it at any time."""
        if not self.is_own():
            raise StorageError(f"{self.path}: belongs to another user; remove it or choose another place")

    def require_unshared(self) -> None:
        """Raise StorageError where the folder is another user's, or others may put something into it."""
        self.require_own()
        if _is_shared(os.fstat(self._descriptor)):
            raise StorageError(
                f"{self.path}: other users may change what lies there; forbid it with `chmod go-w`, or "
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
                # Another process may remove one meanwhile.
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
    """Write a text file as `Folder.replace` does; the folder it lies in may be a link.

    Raises:
        OSError: the file system refuses.
        StorageError: something that is no file has that name.
    """
    with Folder.open(path.parent) as folder:
        folder.replace(path.name, text.encode(), durable=durable)


def require_writable(path: Path) -> None:
    """See to it that `write_atomically` could write a file, before the work is begun that it is to hold.

    Raises:
        StorageError: it could not.
    """
    try:
        with Folder.open(path.parent) as folder:
            folder.require_replaceable(path.name)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror}); choose another place") from error


def read_bounded(path: Path, largest: int) -> bytes:
    """The bytes of a file, named by a person, that ought to have `largest` at most.

    Raises:
        OSError: it cannot be read.
        StorageError: it has more, or is a pipe or a device, which may never end.
    """
    with open_file(path) as stream:
        return _bounded(stream, path, largest)


def open_file(path: Path) -> io.BufferedReader:
    """A file named by a person, opened for reading; it may be a link.

    Raises:
        OSError: it cannot be read.
        StorageError: it is a pipe or a device, which may never end.
    """
    _require_file(path, path.stat().st_mode)
    return _checked(os.open(path, _AT_ONCE), path)


def open_plain_file(path: Path) -> io.BufferedReader:
    """Like `open_file`, but the name itself must not be a link."""
    with _links_refused(path, None, str(path)):
        _require_file(path, path.lstat().st_mode)
        return _checked(os.open(path, _AT_ONCE | os.O_NOFOLLOW), path)


def first_link(root: Path, relative: str) -> Path | None:
    """The first part of the path `relative` to `root` that is a link; missing parts are none."""
    path = root
    for part in PurePosixPath(relative).parts:
        path = path / part
        if path.is_symlink():
            return path
    return None


def changeable_by_others(path: Path) -> Path | None:
    """Return the first folder or link on the way to `path` that another user than root could change.

    A user who can write to a folder can replace its entries, unless the folder is sticky. Links are followed,
    and the folders on their way are checked, too.

    Raises:
        OSError: a part of the way is missing or cannot be looked at.
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
    """Raise StorageError where another user may have put `what` there, which is run, or may replace it.

    `variable` is what names another place in the environment.

    Raises:
        OSError: a part of the way is missing or cannot be looked at.
    """
    shared = changeable_by_others(path)
    if shared is not None:
        raise StorageError(
            f"{shared}: other users may change what lies there, and {what} would be run from there; "
            f"forbid it with `chmod go-w`, or set {variable} to a folder of your own"
        )


def _is_shared(folder: os.stat_result) -> bool:
    """Return whether others can remove or replace entries of the folder."""
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
    """Return whether to stop waiting: the folder is locked now, or the file system has no locks. filelock
    would lock a file that it finds by its path; this locks the open folder itself, which cannot be swapped,
    and leaves no file in it."""
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
    """An open file, once more looked at: what has its name may have changed since."""
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
        raise StorageError(f"{path}: is {_kind(mode)}; save what comes out of it to a file first")


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
        f"{path}: is a link, and none is followed there; put what it names in its place, or remove it"
    )


@contextlib.contextmanager
def _links_refused(path: Path, descriptor: int | None, name: str) -> Iterator[None]:
    """Say of an opening that failed because of a link that it did: systems have several numbers for that."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR):
            mode = _mode(name, descriptor)
            if mode is not None and stat.S_ISLNK(mode):
                raise _link_refused(path) from None
        raise
