"""List the files of a repository of the Hugging Face hub: from the hub, or from the local cache."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from anespec.hub_cache import HubCache
from anespec.hub_choice import HubFile
from anespec.hub_errors import MAIN
from anespec.hub_name import HubName
from anespec.hub_request import ask_hub, following, hub_url
from anespec.manifests.errors import StorageError
from anespec.url_connection import Broken

LARGEST_LISTING = 32 << 20
"""Bytes, all pages together."""

MOST_PAGES = 100
"""The hub lists 1000 files on each."""


class _Entry(BaseModel):
    """A file or a folder of a repository, as the hub lists it; other fields are ignored."""

    model_config = ConfigDict(strict=True)
    type: str
    path: str
    size: Annotated[int, Field(ge=0, lt=1 << 63)]


_PAGE = TypeAdapter(list[_Entry])


def list_files(name: HubName) -> list[HubFile]:
    """Return the files of a repository at a revision; those downloaded before where the hub gives no list.

    Raises:
        RequestError: there is no such repository or revision, or this user is not given it.
        StorageError: the hub cannot be reached or its list is invalid, and nothing was downloaded before.
    """
    try:
        return files_of_hub(name)
    except StorageError:
        if here := _downloaded(name):
            return here
        raise


def files_of_hub(name: HubName) -> list[HubFile]:
    """Return the files that the hub lists; raise as `list_files`."""
    url: str | None = hub_url(f"api/models/{name.repo}/tree", name.revision or MAIN) + "?recursive=true"
    files: list[HubFile] = []
    left = LARGEST_LISTING
    for _ in range(MOST_PAGES):
        assert url is not None
        try:
            with ask_hub(name, url) as answer:
                content = answer.content(left)
        except Broken:
            raise StorageError(
                f"{name}: the connection to the hub broke; run the same command again"
            ) from None
        if content is None:
            break
        left -= len(content)
        files += _files(name, content)
        if answer.next_page is None:
            return files
        url = following(name, answer.url, answer.next_page)
    raise StorageError(
        f"{name}: the hub's list of its files has no end; name one, as in hf:{name.repo}/FILE.gguf, or check "
        "HF_ENDPOINT"
    )


def _files(name: HubName, page: bytes) -> list[HubFile]:
    try:
        entries = _PAGE.validate_json(page)
    except ValidationError:
        raise StorageError(
            f"{name}: the hub answers something else than a list of files; check HF_ENDPOINT"
        ) from None
    return [HubFile(entry.path, entry.size) for entry in entries if entry.type == "file"]


def _downloaded(name: HubName) -> list[HubFile]:
    cache = HubCache.of(name)
    commit = cache.commit(name.revision)
    if commit is None:
        return []
    root = cache.snapshot(commit)
    return [
        HubFile(path.relative_to(root).as_posix(), path.stat().st_size)
        for path in root.rglob("*.gguf")
        if path.is_file()
    ]
