"""Files at URLs, brought into the cache folder: checked, gone on with, and asked for anew where they changed.

CACHE/anespec/downloads/urls/KEY/NAME.gguf     the file; KEY follows from the URL
CACHE/anespec/downloads/urls/KEY/kept.json     what the server said of it
CACHE/anespec/downloads/urls/KEY/partial       what has come of it so far
CACHE/anespec/downloads/urls/KEY/partial.json  what the server said of that
"""

import contextlib
import hashlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.manifests.errors import (
    GGUFError,
    RequestError,
    StorageError,
    UsageError,
)
from anespec.manifests.formatting import LONGEST_REASON, bytes_text, printable
from anespec.manifests.safe_files import Folder
from anespec.manifests.store import file_sha256
from anespec.manifests.user_folders import cache_folder, private_folder
from anespec.model_cache import GGUF_MAGIC
from anespec.remote import Fetched, require_room
from anespec.url_facts import Facts
from anespec.url_name import UrlName
from anespec.url_request import Answer, Broken, Refused, Unreachable, ask
from anespec.watching import Watcher

if TYPE_CHECKING:
    from anespec.validate.progress import Progress

FOLDER = Path("downloads", "urls")
KEPT, PARTIAL, PARTIAL_FACTS, LOCK = "kept.json", "partial", "partial.json", "lock"
PIECE_BYTES = 1 << 20
MOST_VAIN_TRIES = 3
"""Connections that bring nothing."""

RETRY_SECONDS = 1.0

_log = logging.getLogger(__name__)


def fetch_url(name: UrlName, watch: Watcher, allow_http: bool = False) -> Fetched:
    """Have the file at a URL lie on this machine.

    What lies here already is used where the server says that it is the newest, or cannot be reached.

    Raises:
        UsageError: it would come over plain HTTP from another machine.
        RequestError: there is no such file, or it is not given to anybody.
        GGUFError: what came is no whole GGUF.
        StorageError: the server cannot be reached, says what cannot be, or the disk refuses.
    """
    from filelock import FileLock

    path = cache_folder() / FOLDER / hashlib.sha256(name.url.encode()).hexdigest()[:16]
    with private_folder(path) as folder, FileLock(path / LOCK, mode=0o600), _without_a_trace(folder):
        download = _Download(name, folder, path, watch, allow_http)
        kept = download.kept()
        if not (name.is_private or allow_http):
            if kept is None:
                raise UsageError(
                    f"{name}: over http anybody between could change what comes; write https, or run "
                    "`anespec pull --allow-http URL` once where you trust the network"
                )
            return Fetched(path / name.name, str(name))
        if kept is not None and name.sha256 is not None:
            # No other bytes are wanted, whatever the server has by now.
            return Fetched(path / name.name, str(name))
        try:
            return Fetched(path / name.name, str(name), None, download.run(kept))
        except Unreachable as error:
            if kept is None:
                raise StorageError(str(error)) from None
            _log.info("%s; what was downloaded before is used", error)
            return Fetched(path / name.name, str(name))


@contextlib.contextmanager
def _without_a_trace(folder: Folder) -> Iterator[None]:
    """Leave no folder for what failed before anything came."""
    try:
        yield
    except BaseException:
        if folder.names() == [LOCK]:
            with contextlib.suppress(OSError):
                folder.remove(LOCK)
                folder.path.rmdir()
        raise


@dataclass(frozen=True)
class _Download:
    """One file on its way."""

    name: UrlName
    folder: Folder
    path: Path
    watch: Watcher
    allow_http: bool

    @property
    def partial(self) -> Path:
        """What has come of it."""
        return self.path / PARTIAL

    def kept(self) -> Facts | None:
        """What was said of the file that lies here; None where none does, or another than is wanted."""
        facts = Facts.read(self.folder, KEPT, self.name.url)
        if facts is None or not (self.path / self.name.name).is_file():
            return None
        return facts if self.name.sha256 in (None, facts.sha256) else None

    def run(self, kept: Facts | None) -> int:
        """Bring the file, or find that what lies here is the newest; the bytes that came now."""
        came = vain = 0
        with self.watch.shares(f"downloading {self.name.name}") as report:
            report(f"asking {printable(self.name.url)}")
            while True:
                begun = self._begun()
                try:
                    with ask(self.name.url, self._headers(kept, begun), self.allow_http) as answer:
                        if answer.status == 304:
                            return 0
                        if answer.status == 416:
                            # The file is another, and no longer than what has come.
                            self._drop()
                            vain += 1
                            if vain == MOST_VAIN_TRIES:
                                raise StorageError(
                                    f"{self.name}: the server says another size than it sends; try later"
                                )
                            continue
                        done, is_whole = self._take(answer, begun, report)
                except Unreachable:
                    vain += 1
                    if vain == MOST_VAIN_TRIES or not self._begun():
                        raise
                    time.sleep(RETRY_SECONDS)
                    continue
                except Refused as error:
                    raise RequestError(str(error)) from None
                came += done - (begun if answer.status == 206 else 0)
                if is_whole:
                    break
                vain = vain if done > begun else vain + 1
                if vain == MOST_VAIN_TRIES:
                    raise StorageError(
                        f"{self.name}: the connection broke after {bytes_text(done)}; run the same command "
                        "again, which goes on there"
                    )
            report("checking it")
            self._finish()
        return came

    def _begun(self) -> int:
        try:
            return self.partial.stat().st_size
        except OSError:
            return 0

    def _headers(self, kept: Facts | None, begun: int) -> dict[str, str]:
        facts = Facts.read(self.folder, PARTIAL_FACTS, self.name.url)
        if begun and facts is not None and facts.validator is not None:
            return {"Range": f"bytes={begun}-", "If-Range": facts.validator}
        if kept is not None and kept.etag is not None:
            return {"If-None-Match": kept.etag}
        if kept is not None and kept.modified is not None:
            return {"If-Modified-Since": kept.modified}
        return {}

    def _take(self, answer: Answer, begun: int, report: "Progress") -> tuple[int, bool]:
        """Write what comes; the bytes that are there then, and whether they are all."""
        if answer.status == 206 and answer.first != begun:
            self._drop()
            raise StorageError(f"{self.name}: the server sends another part than was asked for; try again")
        done = begun if answer.status == 206 else 0
        if begun and not done:
            self.watch.note(
                f"{self.name}: begins anew, without the {bytes_text(begun)} that had come: the file changed, "
                "or its server does not send parts"
            )
        total = answer.whole
        missing = None if total is None else total - done
        if missing is not None:
            require_room(self.path, self.name, missing, begun - done)
        try:
            with self.partial.open("r+b" if done else "wb") as stream:
                stream.seek(done)
                if not done:
                    Facts.of(self.name.url, answer).write(self.folder, PARTIAL_FACTS)
                for piece in answer.pieces(PIECE_BYTES):
                    if not done and not piece.startswith(GGUF_MAGIC):
                        raise GGUFError(
                            f"{self.name}: is no GGUF but something else, such as a web page; give the URL "
                            "of the file itself, or for the Hugging Face hub hf:OWNER/REPO/FILE.gguf"
                        )
                    stream.write(piece)
                    done += len(piece)
                    report(*_so_far(done, total))
        except Broken:
            return done, False
        except GGUFError:
            self._drop()
            raise
        except OSError as error:
            raise StorageError(f"{self.partial}: cannot be written ({error.strerror})") from error
        return done, total in (None, done)

    def _finish(self) -> None:
        """Check what came, and give it its name."""
        from anespec.manifests.gguf_file import GGUFFile

        facts = Facts.read(self.folder, PARTIAL_FACTS, self.name.url) or Facts(url=self.name.url)
        wanted, found = self.name.sha256 or facts.sha256, file_sha256(self.partial)
        if wanted not in (None, found):
            self._drop()
            who = "the URL" if self.name.sha256 is not None else "the server"
            raise StorageError(
                f"{self.name}: what came has the hash {found[:16]}…, and {who} says {str(wanted)[:16]}…; "
                "it is removed"
            )
        try:
            with GGUFFile(self.partial):
                pass
        except GGUFError as error:
            self._drop()
            reason = printable(str(error).replace(f"{self.partial}: ", ""), LONGEST_REASON)
            raise GGUFError(f"{self.name}: what came is no whole GGUF ({reason}); it is removed") from None
        try:
            self.folder.rename(PARTIAL, self.name.name)
            facts.model_copy(update={"sha256": found}).write(self.folder, KEPT)
            self.folder.remove(PARTIAL_FACTS)
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be written ({error.strerror})") from error

    def _drop(self) -> None:
        for name in (PARTIAL, PARTIAL_FACTS):
            self.folder.remove(name)


def _so_far(done: int, total: int | None) -> tuple[str, float | None]:
    if total is None:
        return bytes_text(done), None
    return f"{bytes_text(done)} of {bytes_text(total)}", done / max(1, total)
