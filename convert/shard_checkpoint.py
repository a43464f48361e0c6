"""The checkpoint next to a finished shard while a run lasts: its entry in the manifest."""

from pathlib import Path

from pydantic import BaseModel, ValidationError

from anespec.manifests.errors import StorageError
from anespec.manifests.safe_files import Folder
from anespec.manifests.schema import HeadShard, LayerShard

Entry = LayerShard | HeadShard

LARGEST_CHECKPOINT = 1 << 26


class _Checkpoint(BaseModel):
    entry: Entry


def partial_name(package: Path) -> str:
    """Return the temporary name of a shard until it is finished."""
    return f".{package.stem}.partial.mlpackage"


def write_checkpoint(package: Path, entry: Entry) -> None:
    """Say that the shard at `package` is finished; raises OSError where the file system refuses.

    The checkpoint need not outlast a crash of the machine: a shard without one is built again, and so is one
    that does not have the hash its checkpoint says.
    """
    with Folder.open(package.parent, follow=False) as shards:
        shards.replace(_name(package), _Checkpoint(entry=entry).model_dump_json().encode(), durable=False)


def read_checkpoint(package: Path) -> Entry | None:
    """The entry of the shard at `package`; None where it is not finished."""
    try:
        with Folder.open(package.parent, follow=False) as shards:
            return _Checkpoint.model_validate_json(shards.read(_name(package), LARGEST_CHECKPOINT)).entry
    except (OSError, StorageError, ValidationError):
        return None


def _name(package: Path) -> str:
    return f"{package.stem}.json"
