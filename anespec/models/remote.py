"""Models that are named by where they lie on other machines: brought here once, and found again."""

from pathlib import Path

from anespec.models.fetched import Fetched
from anespec.models.hub.name import HubName, is_hub_name
from anespec.models.url.name import UrlName, is_url
from anespec.system.errors import Interrupted
from anespec.system.progress import SILENT, ProgressCallbacks


def is_remote(path: Path) -> bool:
    """Return whether a path names a remote file: of the hub, or at a URL."""
    return is_hub_name(path) or is_url(path)


def remote_name(path: Path) -> str:
    """Return the file name that a remote path refers to; raise UsageError if it refers to none."""
    return HubName.parse(str(path)).name if is_hub_name(path) else UrlName.of(path).name


def fetch(path: Path, watch: ProgressCallbacks = SILENT, *, allow_http: bool = False) -> Fetched:
    """Return a local path of a model's file: `path` itself, or that of the downloaded remote file. `watch`
    receives a note on which file of a repository was chosen, and why. An http URL is accepted only from this
    machine, unless `allow_http`.

    Raises:
        UsageError: it begins like a name of the hub or a URL and is none, or one that is not taken.
        MissingPackageError: huggingface_hub is not installed, and it is of the hub.
        RequestError: there is no such file, or this user is not given it.
        GGUFError: what came is no whole GGUF.
        StorageError: the other machine cannot be reached, or the disk refuses.
        Interrupted: someone pressed ^C; what came is kept.
    """
    try:
        if is_hub_name(path):
            from anespec.models.hub.download import fetch_from_hub

            return fetch_from_hub(HubName.parse(str(path)), watch)
        if is_url(path):
            from anespec.models.url.download import fetch_url

            return fetch_url(UrlName.of(path), watch, allow_http)
    except KeyboardInterrupt:
        goes_on = " where the server sends parts" if is_url(path) else ""
        raise Interrupted(
            f"interrupted; what was downloaded is kept, and the next run goes on there{goes_on}"
        ) from None
    return Fetched(path)


def fetched(path: Path, watch: ProgressCallbacks = SILENT) -> Path:
    """Return the local path of a model's file; raises like `fetch`."""
    return fetch(path, watch).path
