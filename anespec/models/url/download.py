"""Download files from URLs into the cache folder: check them, resume them, and download changed files again.

CACHE/anespec/downloads/urls/KEY/NAME.gguf     the file; KEY follows from the URL
CACHE/anespec/downloads/urls/KEY/kept.json     what the server said about it
CACHE/anespec/downloads/urls/KEY/partial       the bytes downloaded so far
CACHE/anespec/downloads/urls/KEY/partial.json  what the server said about these

Of a model in parts, each part is a download of its own; links to the others lie beside the first.
"""

import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.gguf import MAGIC
from anespec.manifests.store import file_sha256
from anespec.models.fetched import ROOM_KEPT, Fetched, has_room, require_room
from anespec.models.url.connection import Answer, Broken, Refused, Unreachable, ask
from anespec.models.url.folder import Facts, own_folder
from anespec.models.url.name import UrlName
from anespec.system.errors import (
    GGUFError,
    Interrupted,
    RequestError,
    StorageError,
    UsageError,
)
from anespec.system.formatting import LONGEST_REASON, bytes_text, printable
from anespec.system.progress import ProgressCallbacks
from anespec.system.safe_files import Folder
from anespec.system.user_folders import cache_folder

if TYPE_CHECKING:
    from anespec.system.progress import Progress

FOLDER = Path("downloads", "urls")
KEPT, PARTIAL, PARTIAL_FACTS = "kept.json", "partial", "partial.json"
PIECE_BYTES = 1 << 16
MOST_VAIN_TRIES = 3
"""How many connections in a row may bring less than one piece of new bytes."""

RETRY_SECONDS = 1.0
CONDITION_HEADERS = {"If-None-Match", "If-Modified-Since"}
"""Headers that allow a server to answer with status 304."""

_log = logging.getLogger(__name__)


def fetch_url(name: UrlName, watch: ProgressCallbacks, allow_http: bool = False) -> Fetched:
    """Return the local path of the file at a URL; download the file, or all parts of the model, if necessary.

    A file that was downloaded before is used if it is still the newest, or if the server cannot be reached.

    Raises:
        UsageError: the file would come over plain HTTP from another machine, or a hash is given for several
            files.
        RequestError: there is no such file, or it is not public.
        GGUFError: the downloaded file is not a complete GGUF.
        StorageError: the server cannot be reached or contradicts itself, or writing to the disk fails.
        Interrupted: ^C was pressed; the bytes that the next run can resume from are kept.
    """
    first, *others = [_fetch_file(part, watch, allow_http) for part in name.parts]
    if others:
        _link_beside(first.path, [other.path for other in others])
    return replace(first, bytes=first.bytes + sum(other.bytes for other in others))


def _link_beside(first: Path, others: Sequence[Path]) -> None:
    """Link the other parts of a model, which are downloads of their own, into the folder of the first."""
    try:
        with own_folder(first.parent, lambda: None) as folder:
            for path in others:
                folder.replace_link(path.name, f"../{path.parent.name}/{path.name}")
    except OSError as error:
        raise StorageError(f"{first.parent}: cannot be written ({error.strerror})") from error


def _fetch_file(name: UrlName, watch: ProgressCallbacks, allow_http: bool) -> Fetched:
    """Return the local path of one file; see `fetch_url`."""
    path = cache_folder() / FOLDER / hashlib.sha256(name.url.encode()).hexdigest()[:16]
    with own_folder(path, lambda: watch.note(f"{name}: another anespec downloads it; waiting")) as folder:
        download = _Download(name, folder, path, watch, allow_http)
        kept = download.kept()
        if not (name.is_private or allow_http):
            if kept is None:
                raise UsageError(
                    f"{name}: http does not protect the download from changes; write https, or run "
                    "`anespec pull --allow-http URL` once if you trust the network"
                )
            return Fetched(path / name.name, name.url)
        if kept is not None and name.sha256 is not None:
            # The hash fixes the content, so the server need not be asked for a newer file.
            return Fetched(path / name.name, name.url)
        try:
            return Fetched(path / name.name, name.url, None, download.run(kept))
        except Unreachable as error:
            if kept is None:
                raise StorageError(str(error)) from None
            _log.info("%s; what was downloaded before is used", error)
            return Fetched(path / name.name, name.url)


class _WrongContent(Exception):  # noqa: N818
    """The server sent another version or another part of the file than was requested."""


@dataclass(frozen=True)
class _Begun:
    """The bytes of one version of the file that were downloaded so far."""

    facts: Facts
    bytes: int


@dataclass(frozen=True)
class _Download:
    """The download of one file."""

    name: UrlName
    folder: Folder
    path: Path
    watch: ProgressCallbacks
    allow_http: bool

    @property
    def partial(self) -> Path:
        """Return the path of the incomplete file."""
        return self.path / PARTIAL

    def kept(self) -> Facts | None:
        """Return the facts of the downloaded file; None if there is none, or if its hash is not the requested
        one."""
        facts = Facts.read(self.folder, KEPT, self.name.url)
        if facts is None or not (self.path / self.name.name).is_file():
            return None
        return facts if self.name.sha256 in (None, facts.sha256) else None

    def run(self, kept: Facts | None) -> int:
        """Download the file, unless the local one is the newest; return the bytes downloaded now."""
        try:
            with self.watch.shares(f"downloading {self.name.name}") as report:
                report(f"asking {self.name}")
                return self._download(kept, report)
        except KeyboardInterrupt:
            begun = self._begun()
            raise Interrupted(
                "interrupted; nothing is kept, so the next run starts from the beginning"
                if begun is None
                else f"interrupted; what was downloaded is kept ({bytes_text(begun.bytes)}), and the next "
                "run continues there if the server supports it"
            ) from None
        finally:
            # Bytes that cannot be resumed from are removed.
            self._begun()

    def _download(self, kept: Facts | None, report: "Progress") -> int:
        came = vain = furthest = 0
        while True:
            begun = self._begun()
            before = begun.bytes if begun is not None else 0
            furthest = max(furthest, before)
            asked = _headers(kept, begun)
            try:
                with ask(self.name.url, asked, self.allow_http) as answer:
                    if answer.status == 304 and not asked.keys().isdisjoint(CONDITION_HEADERS):
                        return 0
                    first, done, is_whole = self._take(answer, begun, report)
            except Unreachable:
                vain += 1
                if vain == MOST_VAIN_TRIES or not (before or came):
                    raise
                time.sleep(RETRY_SECONDS)
                continue
            except _WrongContent:
                vain += 1
                self._drop()
                if vain == MOST_VAIN_TRIES or begun is None:
                    raise StorageError(
                        f"{self.name}: the server sent another size than it announced, or another part than "
                        "was requested; try later"
                    ) from None
                self.watch.note(
                    f"{self.name}: the server has a new version of the file; the download starts again"
                )
                continue
            except Refused as error:
                raise RequestError(str(error)) from None
            came += done - first
            if is_whole:
                break
            # Count new bytes only: a server without ranges may break off at the same place each time.
            vain += done < furthest + PIECE_BYTES
            furthest = max(furthest, done)
            if vain == MOST_VAIN_TRIES:
                begun = self._begun()
                after = "" if begun is None else f" after {bytes_text(begun.bytes)}"
                raise StorageError(
                    f"{self.name}: the connection broke{after}; run the same command again, which "
                    + ("starts from the beginning" if begun is None else "continues there")
                )
        report("checking it")
        self._finish()
        return came

    def _begun(self) -> _Begun | None:
        """Return what can be resumed; if nothing can, remove it and return None."""
        facts = Facts.read(self.folder, PARTIAL_FACTS, self.name.url)
        try:
            size = self.partial.stat().st_size
        except OSError:
            size = 0
        if facts is None or facts.validator is None or not size:
            self._drop()
            return None
        return _Begun(facts, size)

    def _take(self, answer: Answer, begun: _Begun | None, report: "Progress") -> tuple[int, int, bool]:
        """Write the answer's bytes; return the size before and after, and whether the file is complete."""
        first = there = begun.bytes if begun is not None else 0
        if answer.status == 200:
            first = 0
            if begun is not None:
                self._note_restart(answer, begun)
        elif (
            answer.status != 206 or begun is None or answer.first != first or not begun.facts.is_same(answer)
        ):
            raise _WrongContent
        total, done = answer.whole, first
        if total is not None:
            require_room(self.path, self.name, total - first, there - first)
        try:
            with self.partial.open("r+b" if first else "wb") as stream:
                stream.seek(first)
                if not first:
                    Facts.of(self.name.url, answer).write(self.folder, PARTIAL_FACTS)
                for piece in answer.pieces(PIECE_BYTES):
                    self._require_taking(piece, done, total)
                    stream.write(piece)
                    done += len(piece)
                    report(*_so_far(done, total))
        except Broken:
            return first, done, False
        except GGUFError:
            self._drop()
            raise
        except OSError as error:
            raise StorageError(f"{self.partial}: cannot be written ({error.strerror})") from error
        return first, done, total in (None, done)

    def _require_taking(self, piece: bytes, done: int, total: int | None) -> None:
        """Raise if a piece must not be appended.

        Raises:
            GGUFError: the piece is the first one, and does not begin a GGUF.
            StorageError: the disk has no space for the piece.
            _WrongContent: the file would be longer than the server said.
        """
        if not done and not piece.startswith(MAGIC):
            raise GGUFError(
                f"{self.name}: is not a GGUF, but perhaps a web page; give the URL "
                "of the file itself, or for the Hugging Face hub hf:OWNER/REPO/FILE.gguf"
            )
        if total is not None and done + len(piece) > total:
            raise _WrongContent
        if not has_room(self.path, len(piece)):
            raise StorageError(
                f"{self.path}: has no room for more than {bytes_text(done)} of {self.name}, since "
                f"{bytes_text(ROOM_KEPT)} stay free; free some space, and run the same command again"
            )

    def _note_restart(self, answer: Answer, begun: _Begun) -> None:
        why = "does not support ranges" if begun.facts.is_same(answer) else "has a new version of the file"
        self.watch.note(
            f"{self.name}: the server {why}; the download starts again, without the "
            f"{bytes_text(begun.bytes)} downloaded before"
        )

    def _finish(self) -> None:
        """Check the downloaded file, and rename it."""
        from anespec.gguf.mapped_file import MappedFile

        facts = Facts.read(self.folder, PARTIAL_FACTS, self.name.url) or Facts(url=self.name.url)
        wanted, found = self.name.sha256 or facts.sha256, file_sha256(self.partial)
        if wanted not in (None, found):
            self._drop()
            who = "the URL" if self.name.sha256 is not None else "the server"
            raise StorageError(
                f"{self.name}: the download has the hash {found[:16]}…, and {who} says {str(wanted)[:16]}…; "
                "it is removed"
            )
        try:
            MappedFile(self.partial).close()
        except GGUFError as error:
            self._drop()
            reason = printable(str(error).replace(f"{self.partial}: ", ""), LONGEST_REASON)
            raise GGUFError(
                f"{self.name}: the download is not a complete GGUF ({reason}); it is removed"
            ) from None
        try:
            self.folder.rename(PARTIAL, self.name.name)
            facts.model_copy(update={"sha256": found}).write(self.folder, KEPT)
            self.folder.remove(PARTIAL_FACTS)
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be written ({error.strerror})") from error

    def _drop(self) -> None:
        for name in (PARTIAL, PARTIAL_FACTS):
            self.folder.remove(name)


def _headers(kept: Facts | None, begun: _Begun | None) -> dict[str, str]:
    """Return a request's headers: the range to resume from, or the version that is already here."""
    if begun is not None and begun.facts.validator is not None:
        return {"Range": f"bytes={begun.bytes}-", "If-Range": begun.facts.validator}
    if kept is not None and kept.etag is not None:
        return {"If-None-Match": kept.etag}
    if kept is not None and kept.modified is not None:
        return {"If-Modified-Since": kept.modified}
    return {}


def _so_far(done: int, total: int | None) -> tuple[str, float | None]:
    if total is None:
        return bytes_text(done), None
    return f"{bytes_text(done)} of {bytes_text(total)}", done / max(1, total)
