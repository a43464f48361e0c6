"""Files of the Hugging Face hub, brought into its library's own cache.

The library finds what is asked for, and keeps it where other programs find it too. What it downloads itself
begins anew after an interruption, so the bytes are fetched here, into a file beside their place that the next
run goes on with, and are checked against the hash that the hub says.
"""

import re
from pathlib import Path

from anespec.hub_errors import in_one_sentence, without_warnings
from anespec.hub_name import HubName
from anespec.manifests.errors import StorageError
from anespec.manifests.formatting import bytes_text, quoted
from anespec.manifests.packages import require_package
from anespec.manifests.store import file_sha256
from anespec.manifests.user_folders import cache_folder, private_folder
from anespec.model_cache import Display
from anespec.remote import Fetched, require_room
from anespec.watching import Watcher

SHA256 = re.compile(r"[0-9a-f]{64}")

HASH = re.compile(r"[0-9A-Za-z-]{1,128}")
"""Of what a hub says of a file, what the library names files and folders by."""


def fetch_from_hub(name: HubName, watch: Watcher) -> Fetched:
    """Have a file of the hub lie on this machine; where `name` names none, the best of its repository.

    Raises:
        MissingPackageError: huggingface_hub is not installed.
        RequestError: the hub has no such file, or does not give it to this user.
        StorageError: the hub cannot be reached, or the disk refuses.
    """
    require_package("huggingface_hub", str(name))
    reason = None
    if name.file is None:
        name, reason = _chosen(name, watch)
    path, came = _fetched(name, watch.shares)
    return Fetched(path, str(name), reason, came)


def _chosen(name: HubName, watch: Watcher) -> tuple[HubName, str]:
    """The name of one file, and why it is this one."""
    from anespec.hub_choice import choose
    from anespec.hub_listing import list_files
    from anespec.serving.room import MemoryLimit

    with watch.shares(f"asking the hub for {name.repo}"):
        files = list_files(name)
    choice = choose(name, files, MemoryLimit.of(None).bytes)
    watch.note(f"{name}: takes {choice.file.path} ({bytes_text(choice.file.bytes)}), {choice.reason}")
    return HubName(name.repo, choice.file.path, name.revision), choice.reason


def _fetched(name: HubName, display: Display) -> tuple[Path, int]:
    """Return the path of a named file, and the bytes that were downloaded now."""
    from huggingface_hub import hf_hub_download

    assert name.file is not None
    with in_one_sentence(name), without_warnings(), display(f"asking the hub for {name.name}"):
        found = hf_hub_download(name.repo, name.file, revision=name.revision, dry_run=True)
    _require_hash(name, found.commit_hash)
    pointer = Path(found.local_path)
    if not found.will_download and pointer.exists():
        return pointer, 0
    with in_one_sentence(name), without_warnings():
        # REPOSITORY/snapshots/COMMIT/FILE, whose name may have folders.
        repository = pointer.parents[name.file.count("/") + 2]
        came = _bring(name, found.commit_hash, repository / "blobs", display)
        return Path(hf_hub_download(name.repo, name.file, revision=name.revision)), came


def _bring(name: HubName, commit: str, blobs: Path, display: Display) -> int:
    """Have the file's bytes lie where the library looks for them; how many came now."""
    from filelock import FileLock
    from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url
    from huggingface_hub.file_download import http_get

    assert name.file is not None
    url = hf_hub_url(name.repo, name.file, revision=commit)
    metadata = get_hf_file_metadata(url)
    if metadata.etag is None or metadata.size is None:
        # What the library cannot keep by its hash, it may download as it likes.
        return 0
    etag, size, token = metadata.etag, metadata.size, get_token()
    _require_hash(name, etag)
    blobs.mkdir(parents=True, exist_ok=True)
    partial, blob = blobs / f"{etag}.anespec.incomplete", blobs / etag
    locks = cache_folder() / "downloads"
    with private_folder(locks), FileLock(locks / f"{etag}.lock", mode=0o600):
        if blob.exists():
            return 0
        with partial.open("ab") as stream:
            if stream.tell() > size:
                stream.truncate(0)
            begun = stream.tell()
            require_room(blobs, name, size - begun)
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
        return size - begun


def _require_hash(name: HubName, said: str) -> None:
    """Raise StorageError for a hash that leads out of the library's folder, as a file's name."""
    if not HASH.fullmatch(said):
        raise StorageError(f"{name}: the hub says {quoted(said)} for a hash; check HF_ENDPOINT")


class _Bar:
    """A replacement for the progress bar of tqdm that the library uses: it counts, and shows nothing."""

    def __init__(self, *_: object, initial: float = 0, **__: object) -> None:
        self.n = int(initial)

    def update(self, count: float | None = 1) -> None:
        """So much more came."""
        self.n += int(count or 0)

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_: object) -> None:
        pass
