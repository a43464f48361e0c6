"""Download files of the Hugging Face hub into huggingface_hub's cache, where other programs find them too.

The hub is asked once for a file's commit, hash and size. Nothing is written before these are checked, and
only bytes with the right hash are kept under that hash. An interrupted download is resumed.
"""

import hashlib
import logging
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path
from typing import TYPE_CHECKING

from anespec.gguf.parts import part_names
from anespec.models.fetched import Display, Fetched, require_room
from anespec.models.hub.choice import COMMIT, HubCache
from anespec.models.hub.name import HubName
from anespec.models.hub.request import (
    MAIN,
    MOST_TRIES,
    RETRY_SECONDS,
    HubUnreachable,
    NoSuchFile,
    NotThere,
    ask_hub,
    hub_url,
)
from anespec.models.url.connection import Broken
from anespec.system.errors import AnespecError, StorageError
from anespec.system.formatting import bytes_text, named, quoted
from anespec.system.packages import require_package
from anespec.system.progress import ProgressCallbacks
from anespec.system.safe_files import Folder
from anespec.system.user_folders import cache_folder, private_folder

if TYPE_CHECKING:
    from anespec.system.progress import Progress

_ETAG = re.compile(r'(?:W/)?"?([0-9a-f]{64}|[0-9a-f]{40})"?')
"""The SHA-256 of a large file, or git's SHA-1 of a small one."""

_SIZE = re.compile(r"[0-9]{1,18}")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Facts:
    """The facts of a file from the hub: its commit, its hash, its size in bytes."""

    commit: str
    etag: str
    size: int


def fetch_from_hub(name: HubName, watch: ProgressCallbacks) -> Fetched:
    """Download a file of the hub if needed, and return its local path; of a model in parts, all parts.

    If `name` has no file, the best file of the repository is chosen.

    Raises:
        GGUFError: the file is a part other than the first.
        MissingPackageError: huggingface_hub is not installed.
        RequestError: the hub has no such file, or this user has no access to it.
        StorageError: the hub cannot be reached or contradicts itself, or writing to the disk fails.
    """
    require_package("huggingface_hub", str(name))
    reason = None
    if name.file is None:
        name, reason = _chosen(name, watch)
    assert name.file is not None
    _, *others = part_names(name.file, name)
    path, commit, came = _fetched(name, watch.shares)
    for file in others:
        # The hub's repository may change meanwhile; all parts are of one commit.
        came += _fetched(HubName(name.repo, file, commit), watch.shares)[2]
    return Fetched(path, str(name), reason, came)


def _chosen(name: HubName, watch: ProgressCallbacks) -> tuple[HubName, str]:
    """Return the name of one file, and why it is this one."""
    from anespec.models.hub.choice import choose, list_files
    from anespec.models.memory_limit import MemoryLimit

    with watch.shares(f"asking the hub for {name.repo}"):
        files = list_files(name)
    choice = choose(name, files, MemoryLimit.of(None).bytes)
    watch.note(f"{name}: chose {choice.file.path} ({bytes_text(choice.file.bytes)}), {choice.reason}")
    return HubName(name.repo, choice.file.path, name.revision), choice.reason


def _fetched(name: HubName, display: Display) -> tuple[Path, str, int]:
    """Return the path of a named file, its commit, and the number of bytes downloaded now."""
    assert name.file is not None
    cache = HubCache.of(name)
    commit = cache.commit(name.revision)
    before = cache.file(commit, name.file)
    if before is not None and commit is not None and commit == name.revision:
        return before, commit, 0
    try:
        with display(f"asking the hub for {name.name}"):
            facts = _facts(name)
    except NotThere:
        raise
    except AnespecError as error:
        if before is None or commit is None:
            raise
        _log.info("%s; what was downloaded before is used", error)
        return before, commit, 0
    if (here := cache.file(facts.commit, name.file)) is not None:
        # The cache may be read-only for this user.
        with suppress(OSError, StorageError):
            cache.remember(name.revision, facts.commit)
        return here, facts.commit, 0
    try:
        with cache.blobs() as blobs:
            came = _download_blob(name, facts, blobs, display)
        path = cache.link(facts.commit, name.file, facts.etag)
        cache.remember(name.revision, facts.commit)
    except OSError as error:
        where = cache.root / cache.repository
        raise StorageError(f"{where}: cannot be written ({error.strerror or error})") from error
    return path, facts.commit, came


def _facts(name: HubName) -> _Facts:
    """Ask the hub for the facts of a file, and check them; raise as `fetch_from_hub`."""
    assert name.file is not None
    url = hub_url(f"{name.repo}/resolve", name.revision or MAIN, f"/{name.file}")
    try:
        with ask_hub(name, url, head=True) as answer:
            headers, is_whole = answer.headers, answer.status == 200
    except NoSuchFile as error:
        raise NoSuchFile(f"{error}{_available_files(name)}") from None
    commit = headers.get("X-Repo-Commit") or ""
    if not COMMIT.fullmatch(commit):
        raise _contradiction(name, commit, "commit")
    said = headers.get("X-Linked-Etag") or headers.get("ETag") or ""
    if (etag := _ETAG.fullmatch(said)) is None:
        raise _contradiction(name, said, "hash")
    # The length of a redirect is not that of the file.
    size = headers.get("X-Linked-Size") or (is_whole and headers.get("Content-Length")) or ""
    if not _SIZE.fullmatch(size):
        raise _contradiction(name, size, "size")
    return _Facts(commit, etag[1], int(size))


def _contradiction(name: HubName, said: str, what: str) -> StorageError:
    said = f"{quoted(said)} for a {what}" if said else f"no {what}"
    return StorageError(f"{name}: the hub says {said}; check HF_ENDPOINT")


def _available_files(name: HubName) -> str:
    """Return a clause that lists the repository's GGUFs; empty if the hub lists none."""
    from anespec.models.hub.choice import files_of_hub

    with suppress(AnespecError):
        found = sorted(file.path for file in files_of_hub(name) if file.path.endswith(".gguf"))
        if found:
            return f"; it has {named(found)}"
    return ""


def _download_blob(name: HubName, facts: _Facts, blobs: Folder, display: Display) -> int:
    """Store the file's bytes in `blobs`; return the number of bytes downloaded now."""
    from filelock import FileLock

    locks = cache_folder() / "downloads"
    with private_folder(locks), FileLock(locks / f"{facts.etag}.lock", mode=0o600):
        if (blobs.path / facts.etag).is_file():
            return 0
        # Several users may share the cache, so each has its own partial file.
        partial = f"{facts.etag}.{os.geteuid()}.anespec.incomplete"
        with blobs.own_file(partial) as stream:
            begun = stream.seek(0, os.SEEK_END)
            if begun > facts.size:
                begun = stream.truncate(0)
            require_room(blobs.path, name, facts.size - begun)
            with display(f"downloading {name.name}") as report:
                came = _receive(name, facts, stream, report)
            if _hash(stream, facts) != facts.etag:
                blobs.remove(partial)
                raise StorageError(
                    f"{name}: the download does not have the hash that the hub states; "
                    "run the same command again"
                )
        blobs.rename(partial, facts.etag)
    return came


def _receive(name: HubName, facts: _Facts, stream: BufferedRandom, report: "Progress") -> int:
    """Download the missing bytes of a file and append them; return the number of bytes downloaded."""
    assert name.file is not None
    url = hub_url(f"{name.repo}/resolve", facts.commit, f"/{name.file}")
    came = vain = furthest = 0
    while (begun := stream.seek(0, os.SEEK_END)) < facts.size:
        done = begun
        try:
            headers = {"Range": f"bytes={begun}-"} if begun else {}
            with ask_hub(name, url, headers=headers) as answer:
                if answer.status != 206:
                    # The server ignores the range and sends the whole file.
                    done = stream.truncate(0)
                    stream.seek(0)
                elif not answer.headers.get("Content-Range", "").startswith(f"bytes {begun}-"):
                    raise StorageError(f"{name}: the hub sends another part than was requested; try again")
                for piece in answer.pieces():
                    done += len(piece)
                    came += len(piece)
                    if done > facts.size:
                        raise StorageError(
                            f"{name}: the hub sends more than the {facts.size} bytes that it announced; "
                            "try later"
                        )
                    stream.write(piece)
                    report(f"{bytes_text(done)} of {bytes_text(facts.size)}", done / facts.size)
        except Broken:
            pass
        except HubUnreachable:
            if not came:
                raise
        if done == facts.size:
            break
        # Count new bytes over all tries: a store may start from the beginning between two tries.
        furthest = max(furthest, begun)
        vain = 0 if done > furthest else vain + 1
        furthest = max(furthest, done)
        if vain == MOST_TRIES:
            raise StorageError(
                f"{name}: the connection broke after {bytes_text(done)}; run the same command again, which "
                "continues there"
            )
        if vain:
            time.sleep(RETRY_SECONDS)
    return came


def _hash(stream: BufferedRandom, facts: _Facts) -> str:
    """Return the hash of a whole file: SHA-256 or git's SHA-1, whichever the hub gave."""
    stream.seek(0)
    if len(facts.etag) == 64:
        return hashlib.file_digest(stream, "sha256").hexdigest()
    begun = hashlib.sha1(b"blob %d\0" % facts.size, usedforsecurity=False)
    return hashlib.file_digest(stream, begun.copy).hexdigest()
