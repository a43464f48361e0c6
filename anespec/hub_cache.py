"""The cache of huggingface_hub, in its own layout, so that other programs find the files.

ROOT/models--OWNER--REPO/blobs/ETAG               a file's bytes
ROOT/models--OWNER--REPO/snapshots/COMMIT/FILE    a link to them
ROOT/models--OWNER--REPO/refs/REVISION            the commit, as text

If HF_HOME is shared, other users can write there too. Writing follows no link below ROOT, and only checked
hashes and plain names become names of files.
"""

import errno
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from anespec.hub_errors import MAIN
from anespec.hub_name import HubName
from anespec.manifests.errors import StorageError
from anespec.manifests.safe_files import Folder, read_bounded

COMMIT = re.compile(r"[0-9a-f]{40}")

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
"""Errors of file systems without links."""


@dataclass(frozen=True)
class HubCache:
    """The files of one repository that lie on this machine."""

    root: Path
    repository: str

    @classmethod
    def of(cls, name: HubName) -> Self:
        """Return the cache of a name's repository."""
        from huggingface_hub import constants

        return cls(Path(constants.HF_HUB_CACHE), f"models--{name.repo.replace('/', '--')}")

    def commit(self, revision: str | None) -> str | None:
        """Return the commit that a revision, or the main branch, had when it was last asked for, if any."""
        if revision is not None and COMMIT.fullmatch(revision):
            return revision
        try:
            said = read_bounded(self.root / self.repository / "refs" / (revision or MAIN), 64)
        except (OSError, StorageError):
            return None
        commit = said.decode(errors="replace").strip()
        return commit if COMMIT.fullmatch(commit) else None

    def snapshot(self, commit: str) -> Path:
        """Return the folder of a commit's files, whether it exists or not."""
        return self.root / self.repository / "snapshots" / commit

    def file(self, commit: str | None, file: str) -> Path | None:
        """Return the path of a commit's file; None if it is not in the cache."""
        if commit is None:
            return None
        path = self.snapshot(commit) / file
        try:
            return path if path.is_file() else None
        except OSError:
            # The name is longer than any that the file system has.
            return None

    def blobs(self) -> AbstractContextManager[Folder]:
        """Open the folder of the files' bytes, made where it is missing; raise as Folder does.

        The other folders are tried first, so that none is found unusable after a long download.
        """
        for name in ("snapshots", "refs"):
            with self._folder(name):
                pass
        return self._folder("blobs")

    def link(self, commit: str, file: str, etag: str) -> Path:
        """Link the bytes in `blobs` into a commit's folder; raise as Folder does."""
        *folders, last = file.split("/")
        with self._folder("snapshots", commit, *folders) as folder, self.blobs() as blobs:
            try:
                folder.replace_link(last, f"{'../' * (len(folders) + 2)}blobs/{etag}")
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                blobs.move(etag, folder, last)
        return self.snapshot(commit) / file

    def remember(self, revision: str | None, commit: str) -> None:
        """Store the commit that a revision has now; raise as Folder does."""
        if commit != self.commit(revision):
            *folders, last = (revision or MAIN).split("/")
            with self._folder("refs", *folders) as folder:
                folder.replace(last, commit.encode(), durable=False)

    @contextmanager
    def _folder(self, *names: str) -> Iterator[Folder]:
        self.root.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            folder = stack.enter_context(Folder.open(self.root))
            for name in (self.repository, *names):
                folder = stack.enter_context(folder.folder(name, create=True))
            yield folder
