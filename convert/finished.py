"""The note that lies beside a finished shard while a run lasts: its entry in the manifest."""

from pathlib import Path

from pydantic import BaseModel, ValidationError

from anespec.manifests.schema import HeadShard, LayerShard
from anespec.manifests.store import write_atomically

Entry = LayerShard | HeadShard


class _Note(BaseModel):
    entry: Entry


def write_note(package: Path, entry: Entry) -> None:
    """Say that the shard at `package` is finished; raises OSError where the file system refuses."""
    write_atomically(package.with_suffix(".json"), _Note(entry=entry).model_dump_json())


def read_note(package: Path) -> Entry | None:
    """The entry of the shard at `package`; None where it is not finished."""
    try:
        return _Note.model_validate_json(package.with_suffix(".json").read_text("utf-8")).entry
    except (OSError, ValidationError):
        return None
