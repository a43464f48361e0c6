"""The facts that a server gave about a downloaded file, kept next to the file."""

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
    """The facts of a file from its server: a version mark, the length, and the hash, if there is one."""

    url: str
    etag: Said | None = None
    modified: Said | None = None
    bytes: int | None = None
    sha256: str | None = None

    @property
    def validator(self) -> str | None:
        """The value that the server compares before it resumes a download: a weak etag does not identify
        bytes."""
        if self.etag is not None and not self.etag.startswith("W/"):
            return self.etag
        return self.modified

    def is_same(self, answer: Answer) -> bool:
        """Return whether an answer contains the same version, whichever part of it.

        A server that was asked for a part of this version may still send a part of another one.
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
        """Return the facts in a response for the file at `url`."""
        return cls(
            url=url,
            etag=answer.etag,
            modified=answer.modified,
            bytes=answer.whole,
            sha256=answer.linked_sha256,
        )

    @classmethod
    def read(cls, folder: Folder, name: str, url: str) -> Self | None:
        """Return the stored facts of the file at `url`; None if there are none that can be read."""
        try:
            facts = cls.model_validate_json(folder.read(name, LARGEST_FACTS))
        except (OSError, AnespecError, ValidationError):
            return None
        return facts if facts.url == url else None

    def write(self, folder: Folder, name: str) -> None:
        """Write it; raises OSError where the file system refuses."""
        folder.replace(name, self.model_dump_json().encode())
