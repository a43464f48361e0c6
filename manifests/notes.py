"""The notes on an artifact: the gates' verdicts, and the report page.

    ARTIFACT/gates/GATE.json                       if the artifact is this user's and can be written
    CACHE/anespec/verdicts/FINGERPRINT/GATE.json   if it is read-only, or another user's

Both are read. If both have a verdict for the same circumstances, the one in the user's cache folder takes
precedence, since no other user can write there. Nothing is written to another user's folder, where links
could redirect a write.
"""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from anespec.manifests.verdicts import VerdictFile, VerdictT
from anespec.system.errors import StorageError
from anespec.system.safe_files import Folder
from anespec.system.user_folders import cache_folder, private_folder

GATES_FOLDER = "gates"
OWN_FOLDER = "verdicts"

LARGEST_JSON = 1 << 26
"""The largest JSON file in bytes that is read; a manifest of a model of 100 layers takes less than 1 %."""

FileT = TypeVar("FileT", bound=VerdictFile[Any])

_REFUSALS = (errno.EROFS, errno.EACCES, errno.EPERM)
"""The errors of a folder that cannot be written at all, in contrast to a full disk."""


class _RefusedError(Exception):
    """The artifact's folder may not be written; the text says why."""


class Notes:
    """The notes on the artifact at `root` with a fingerprint. Its constructor opens no file."""

    def __init__(self, root: Path, fingerprint: str) -> None:
        self._root = root
        self._fingerprint = fingerprint

    def read(self, kind: type[FileT]) -> FileT:
        """Return a gate's verdicts; a file that cannot be read counts as empty."""
        return self._in_artifact(kind).overruled_by(self._own(kind))

    def record(self, kind: type[VerdictFile[VerdictT]], verdict: VerdictT) -> None:
        """Add a verdict atomically, also if other processes add theirs at the same time.

        If the user's cache folder has a verdict for the same circumstances, it is replaced there, too.

        Raises:
            StorageError: neither folder can be written.
        """
        name = f"{kind.gate}.json"
        try:
            with (
                self._artifact_folder(self._root / GATES_FOLDER) as folder,
                folder.folder(GATES_FOLDER, create=True) as gates,
                gates.held(),
            ):
                gates.replace(name, _content(self._in_artifact(kind).with_verdict(verdict)))
            if self._own(kind).find(verdict.circumstances) is None:
                return
            refusal = ""
        except _RefusedError as error:
            refusal = str(error)
        # The artifact's full verdict is kept unless a quick one refutes it.
        holding = self.read(kind).with_verdict(verdict).find(verdict.circumstances) or verdict
        with self._own_folder(refusal) as folder, folder.held():
            folder.replace(name, _content(self._own(kind).with_verdict(holding)))

    def write(self, name: str, content: bytes) -> Path:
        """Write a file such as the report page; return its path.

        Raises:
            StorageError: neither folder can be written.
        """
        try:
            with self._artifact_folder(self._root / name) as folder:
                folder.replace(name, content)
                return folder.path / name
        except _RefusedError as error:
            with self._own_folder(str(error)) as folder:
                folder.replace(name, content)
                return folder.path / name

    def _in_artifact(self, kind: type[FileT]) -> FileT:
        try:
            with Folder.open(self._root) as folder:
                return kind.model_validate_json(folder.read(f"{GATES_FOLDER}/{kind.gate}.json", LARGEST_JSON))
        except (OSError, ValueError, StorageError):
            return kind()

    def _own(self, kind: type[FileT]) -> FileT:
        try:
            if not self._own_path.is_dir():
                return kind()
            with private_folder(self._own_path) as folder:
                return kind.model_validate_json(folder.read(f"{kind.gate}.json", LARGEST_JSON))
        except (OSError, ValueError, StorageError):
            return kind()

    @contextlib.contextmanager
    def _artifact_folder(self, written: Path) -> Iterator[Folder]:
        """Yield the artifact's folder, to write `written` in it; raise _RefusedError if that is forbidden."""
        try:
            with Folder.open(self._root) as folder:
                if not folder.is_own():
                    raise _RefusedError(f"{self._root}: belongs to another user, so nothing is written there")
                yield folder
        except OSError as error:
            text = f"{written}: cannot be written ({error.strerror})"
            if error.errno in _REFUSALS:
                raise _RefusedError(text) from error
            raise StorageError(text) from error

    @contextlib.contextmanager
    def _own_folder(self, refusal: str) -> Iterator[Folder]:
        """Yield the user's folder for this artifact; an error includes why that folder was needed."""
        try:
            with private_folder(self._own_path) as folder:
                yield folder
        except (OSError, StorageError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            text = f"{refusal}; your cache folder cannot be used either" if refusal else str(self._root)
            raise StorageError(f"{text} ({reason})") from error

    @property
    def _own_path(self) -> Path:
        return cache_folder() / OWN_FOLDER / self._fingerprint


def _content(file: VerdictFile[Any]) -> bytes:
    text = file.model_dump_json(indent=2)
    return f"{text}\n".encode()
