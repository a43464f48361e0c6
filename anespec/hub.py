"""Files of the Hugging Face hub, brought into its library's own cache.

The library finds what is asked for, and keeps it where other programs find it too. What it downloads itself
begins anew after an interruption, so the bytes are fetched here, into a file beside their place that the next
run goes on with, and are checked against the hash that the hub says.
"""

import contextlib
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anespec.hub_name import HubName, is_hub_name
from anespec.manifests.errors import Interrupted, RequestError, StorageError
from anespec.manifests.formatting import LONGEST_REASON, bytes_text, named, printable, quoted
from anespec.manifests.packages import require_package
from anespec.manifests.store import file_sha256
from anespec.manifests.user_folders import cache_folder, private_folder
from anespec.model_cache import Display, no_display

MAIN = "main"
SHA256 = re.compile(r"[0-9a-f]{64}")

HASH = re.compile(r"[0-9A-Za-z-]{1,128}")
"""Of what a hub says of a file, what the library names files and folders by."""


def fetched(path: Path, display: Display = no_display) -> Path:
    """Where a model's file lies on this machine: `path` itself, unless it names one of the hub.

    Raises:
        UsageError: it begins like a name of the hub and is none.
        MissingPackageError: huggingface_hub is not installed.
        RequestError: the hub has no such file, or does not give it to this user.
        StorageError: the hub cannot be reached, or the disk refuses.
        Interrupted: someone pressed ^C; what came is kept.
    """
    if not is_hub_name(path):
        return path
    name = HubName.parse(str(path))
    require_package("huggingface_hub", str(name))
    from huggingface_hub import hf_hub_download

    with _in_one_sentence(name), _without_warnings(), display(f"asking the hub for {name.name}"):
        found = hf_hub_download(name.repo, name.file, revision=name.revision, dry_run=True)
    _require_hash(name, found.commit_hash)
    pointer = Path(found.local_path)
    if not found.will_download and pointer.exists():
        return pointer
    with _in_one_sentence(name), _without_warnings():
        # REPOSITORY/snapshots/COMMIT/FILE, whose name may have folders.
        repository = pointer.parents[name.file.count("/") + 2]
        _bring(name, found.commit_hash, repository / "blobs", display)
        return Path(hf_hub_download(name.repo, name.file, revision=name.revision))


def _bring(name: HubName, commit: str, blobs: Path, display: Display) -> None:
    """Have the file's bytes lie where the library looks for them."""
    from filelock import FileLock
    from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url
    from huggingface_hub.file_download import http_get

    url = hf_hub_url(name.repo, name.file, revision=commit)
    metadata = get_hf_file_metadata(url)
    if metadata.etag is None or metadata.size is None:
        # What the library cannot keep by its hash, it may download as it likes.
        return
    etag, size, token = metadata.etag, metadata.size, get_token()
    _require_hash(name, etag)
    blobs.mkdir(parents=True, exist_ok=True)
    partial, blob = blobs / f"{etag}.anespec.incomplete", blobs / etag
    locks = cache_folder() / "downloads"
    with private_folder(locks), FileLock(locks / f"{etag}.lock", mode=0o600):
        if blob.exists():
            return
        with partial.open("ab") as stream:
            if stream.tell() > size:
                stream.truncate(0)
            begun = stream.tell()
            if (room := shutil.disk_usage(blobs).free) < size - begun:
                raise StorageError(
                    f"{blobs}: has room for {bytes_text(room)}, and {name} takes {bytes_text(size - begun)}"
                )
            with display(f"downloading {name.name}") as report:

                class Shown(_Bar):
                    """Tells of what came."""

                    def update(self, count: float | None = 1) -> None:
                        super().update(count)
                        if self.n > size:
                            raise StorageError(f"{name}: more comes than the {size} bytes that the hub said")
                        report(f"{bytes_text(self.n)} of {bytes_text(size)}", self.n / max(1, size))

                http_get(
                    url,
                    stream,
                    resume_size=begun,
                    headers={"authorization": f"Bearer {token}"} if token else {},
                    expected_size=size,
                    tqdm_class=Shown,
                )
        if SHA256.fullmatch(etag) and file_sha256(partial) != etag:
            partial.unlink()
            raise StorageError(
                f"{name}: what came is not what the hub says it has; run the same command again"
            )
        partial.replace(blob)


def _require_hash(name: HubName, said: str) -> None:
    """Raise StorageError for a hash that leads out of the library's folder, as a file's name."""
    if not HASH.fullmatch(said):
        raise StorageError(f"{name}: the hub says {quoted(said)} for a hash; check HF_ENDPOINT")


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """The library tells of each time that it tries again; what comes of it is said in one sentence."""
    log = logging.getLogger("huggingface_hub")
    before = log.level
    if not logging.getLogger().isEnabledFor(logging.DEBUG):  # which `-vv` asks for
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


class _Bar:
    """What the library takes for a bar of tqdm: counts, and shows nothing."""

    def __init__(self, *_: object, initial: float = 0, **__: object) -> None:
        self.n = int(initial)

    def update(self, count: float | None = 1) -> None:
        """So much more came."""
        self.n += int(count or 0)

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def _in_one_sentence(name: HubName) -> Iterator[None]:
    """What the library raises, as errors of ours."""
    from huggingface_hub import errors

    # Of the HTTP library, which differs from version to version.
    http_error: Any = errors.HfHubHTTPError.__bases__[0]
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted; what was downloaded is kept, and the next run goes on there"
        ) from None
    except errors.GatedRepoError:
        raise RequestError(
            f"{name}: the repository is gated; accept its terms on the hub, and set HF_TOKEN to your token"
        ) from None
    except errors.RepositoryNotFoundError:
        raise RequestError(
            f"{name}: there is no such repository, or it is private; check the name, or set HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise RequestError(f"{name}: the repository has no revision {name.revision or MAIN}") from None
    except errors.RemoteEntryNotFoundError:
        raise RequestError(f"{name}: the repository has no such file{_those_there_are(name)}") from None
    except errors.LocalEntryNotFoundError:
        raise StorageError(
            f"{name}: was not downloaded yet, and the hub cannot be reached; check the connection (and "
            "HF_ENDPOINT, HF_HUB_OFFLINE if they are set)"
        ) from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        mend = "check HF_TOKEN" if status in (401, 403) else "try again later"
        raise StorageError(f"{name}: the hub answers with status {status}; {mend}") from None
    except http_error as error:
        raise StorageError(
            f"{name}: the connection to the hub broke ({printable(str(error), LONGEST_REASON)}); run it "
            "again, which goes on where it stopped"
        ) from None
    except ValueError as error:
        # A name that the library refuses, or a size that it fetches in another way alone.
        raise RequestError(f"{name}: {printable(str(error), LONGEST_REASON)}") from None
    except OSError as error:
        where = error.filename or name
        raise StorageError(f"{where}: cannot be downloaded ({error.strerror or error})") from None


def _those_there_are(name: HubName) -> str:
    """The GGUFs that the repository has, as far as the hub says."""
    from huggingface_hub import HfApi

    with contextlib.suppress(Exception):
        files = HfApi().list_repo_files(name.repo, revision=name.revision)
        found = sorted(file for file in files if file.endswith(".gguf"))
        if found:
            return f"; it has {named(found)}"
    return ""
