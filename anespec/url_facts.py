"""What a server said of a file that was downloaded from it, kept beside the file."""

from typing import Annotated, Self

from pydantic import Field, ValidationError

from anespec.manifests.errors import AnespecError
from anespec.manifests.safe_files import Folder
from anespec.manifests.schema import Record
from anespec.url_request import Answer

LARGEST_FACTS = 1 << 16
"""Bytes."""


Said = Annotated[str, Field(pattern=r"^[ -~]{1,1000}$")]
"""A header's value that may be sent back."""


class Facts(Record):
    """What a server said of a file: what tells another version, its length, and the hash, if it says one."""

    url: str
    etag: Said | None = None
    modified: Said | None = None
    bytes: int | None = None
    sha256: str | None = None

    @property
    def validator(self) -> str | None:
        """What the server compares to go on with the same bytes: a weak etag says nothing of bytes."""
        if self.etag is not None and not self.etag.startswith("W/"):
            return self.etag
        return self.modified

    def is_same(self, answer: Answer) -> bool:
        """Whether an answer is of the very bytes that these were said of, whatever part of them it brings.

        A server that was asked for a part of this version may send one of another all the same.
        """
        strong = self.validator is not None and self.validator == (
            answer.etag if self.validator == self.etag else answer.modified
        )
        return (
            strong
            and (self.bytes is None or self.bytes == answer.whole)
            and answer.linked_sha256 in (None, self.sha256)
        )

    @classmethod
    def of(cls, url: str, answer: Answer) -> Self:
        """What an answer says of the file at `url`."""
        return cls(
            url=url,
            etag=answer.etag,
            modified=answer.modified,
            bytes=answer.whole,
            sha256=answer.linked_sha256,
        )

    @classmethod
    def read(cls, folder: Folder, name: str, url: str) -> Self | None:
        """What was written there of the file at `url`; None where nothing was that can be read."""
        try:
            facts = cls.model_validate_json(folder.read(name, LARGEST_FACTS))
        except (OSError, AnespecError, ValidationError):
            return None
        return facts if facts.url == url else None

    def write(self, folder: Folder, name: str) -> None:
        """Write it; raises OSError where the file system refuses."""
        folder.replace(name, self.model_dump_json().encode())
