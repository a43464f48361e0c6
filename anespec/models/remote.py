"""Download the models of remote names (hf:… and URLs), or find them where they were downloaded before."""

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
    """Return the local file of a model: `path` itself, or the downloaded remote file.

    `watch` receives a note that says which file of a repository was chosen, and why. An http URL to another
    machine is accepted only if `allow_http` is True.

    Raises:
        UsageError: the path looks like a hub name or a URL but is malformed, or the URL is not accepted.
        MissingPackageError: the path is a hub name, and huggingface_hub is not installed.
        RequestError: there is no such file, or this user has no access to it.
        GGUFError: the downloaded file is not a complete GGUF.
        StorageError: the other machine cannot be reached, or writing to the disk fails.
        Interrupted: ^C was pressed; the downloaded bytes are kept.
    """
    try:
        if is_hub_name(path):
            from anespec.models.hub.download import fetch_from_hub

            return fetch_from_hub(HubName.parse(str(path)), watch)
        if is_url(path):
            from anespec.models.url.download import fetch_url

            return fetch_url(UrlName.of(path), watch, allow_http)
    except KeyboardInterrupt:
        goes_on = " if the server supports ranges" if is_url(path) else ""
        raise Interrupted(
            f"interrupted; what was downloaded is kept, and the next run continues there{goes_on}"
        ) from None
    return Fetched(path)


def fetched(path: Path, watch: ProgressCallbacks = SILENT) -> Path:
    """Return the local path of a model's file; raises like `fetch`."""
    return fetch(path, watch).path
