"""List the files of a repository of the Hugging Face hub: from the hub, or from the local cache."""

from pathlib import Path

from anespec.hub_choice import HubFile
from anespec.hub_errors import in_one_sentence, without_warnings
from anespec.hub_name import HubName
from anespec.manifests.errors import StorageError


def list_files(name: HubName) -> list[HubFile]:
    """The files of a repository at a revision; those downloaded before where the hub cannot be reached.

    Raises:
        RequestError: there is no such repository or revision, or this user is not given it.
        StorageError: the hub cannot be reached, and nothing of it was downloaded.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    try:
        with in_one_sentence(name), without_warnings():
            found = HfApi().list_repo_tree(name.repo, recursive=True, revision=name.revision)
            return [HubFile(file.path, file.size) for file in found if isinstance(file, RepoFile)]
    except StorageError:
        if here := _downloaded(name):
            return here
        raise


def _downloaded(name: HubName) -> list[HubFile]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        root = Path(snapshot_download(name.repo, revision=name.revision, local_files_only=True))
    except (LocalEntryNotFoundError, ValueError, OSError):
        return []
    return [
        HubFile(path.relative_to(root).as_posix(), path.stat().st_size)
        for path in root.rglob("*.gguf")
        if path.is_file()
    ]
