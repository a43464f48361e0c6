"""Models that are named by where they lie on the Hugging Face hub: hf:OWNER/REPO/FILE.gguf[@REVISION]."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from anespec.manifests.errors import UsageError
from anespec.manifests.formatting import quoted

SCHEME = "hf:"
_NAME = re.compile(
    r"hf:(?P<repo>[\w.-]{1,96}/[\w.-]{1,96})/(?P<file>[^@]+\.gguf)(?:@(?P<revision>.+))?", re.ASCII
)


@dataclass(frozen=True)
class HubName:
    """A file of a repository; a `revision` of None is its main branch."""

    repo: str
    file: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one; raises UsageError where it is none."""
        found = _NAME.fullmatch(text)
        if found is None or ".." in found["file"].split("/"):
            raise UsageError(
                f"{quoted(text)} names no file of the hub; write hf:OWNER/REPO/FILE.gguf, and "
                "@REVISION after it for another than the newest"
            )
        return cls(found["repo"], found["file"], found["revision"])

    def __str__(self) -> str:
        at = f"@{self.revision}" if self.revision is not None else ""
        return f"{SCHEME}{self.repo}/{self.file}{at}"

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.file.rpartition("/")[2]


def is_hub_name(path: Path) -> bool:
    """Whether a path stands for a file of the hub."""
    return str(path).startswith(SCHEME)
