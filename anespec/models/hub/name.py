"""Models that are named by where they lie on the Hugging Face hub.

    hf:OWNER/REPO/FILE.gguf    this file
    hf:OWNER/REPO:Q8_0         the file of the repository with this quantisation
    hf:OWNER/REPO              the best file of the repository (anespec.models.hub.choice)

Each may end in @REVISION; without, it is the repository's main branch.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from anespec.system.errors import UsageError
from anespec.system.formatting import quoted

SCHEME = "hf:"
_NAME = re.compile(
    r"hf:(?P<repo>[\w.-]{1,96}/[\w.-]{1,96})"
    r"(?:/(?P<file>[^@]+\.gguf)|:(?P<quantisation>[\w.-]{1,32}))?"
    r"(?:@(?P<revision>.+))?",
    re.ASCII,
)
_NO_REPOSITORY = re.compile(r"--|\.\.|(?:^|/)[-.]|[-.](?:/|$)|\.git$")
"""What the hub has no repository with; its cache writes `--` where the name has a slash."""

_USUAL_END = re.compile(r"[-_.]gguf$", re.IGNORECASE)


@dataclass(frozen=True)
class HubName:
    """A file of a repository, or a repository of which one file is to be chosen.

    A `file` of None is to be chosen, by its `quantisation` where there is one. A `revision` of None is the
    main branch.
    """

    repo: str
    file: str | None = None
    revision: str | None = None
    quantisation: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one; raises UsageError where it is none."""
        found = _NAME.fullmatch(text)
        if (
            found is None
            or _NO_REPOSITORY.search(found["repo"])
            or not all(is_plain(found[part] or "-") for part in ("file", "revision"))
        ):
            raise UsageError(
                f"{quoted(text)} names no file of the hub; write hf:OWNER/REPO/FILE.gguf, hf:OWNER/REPO:Q8_0 "
                "or hf:OWNER/REPO, and @REVISION after it for another than the newest"
            )
        return cls(found["repo"], found["file"], found["revision"], found["quantisation"])

    def __str__(self) -> str:
        file = "" if self.file is None else f"/{self.file}"
        kind = "" if self.quantisation is None else f":{self.quantisation}"
        at = "" if self.revision is None else f"@{self.revision}"
        return f"{SCHEME}{self.repo}{file}{kind}{at}"

    @property
    def name(self) -> str:
        """The file's own name; that of the repository, with the quantisation, where none is chosen yet."""
        if self.file is not None:
            return self.file.rpartition("/")[2]
        repository = _USUAL_END.sub("", self.repo.rpartition("/")[2])
        return repository if self.quantisation is None else f"{repository}-{self.quantisation}"


def is_plain(path: str) -> bool:
    """Whether a path, of a file or a revision, stays below its folder and can be written as it is."""
    parts = path.split("/")
    return path.isprintable() and "\\" not in path and not {"", ".", ".."} & set(parts)


def is_hub_name(path: Path) -> bool:
    """Return whether a path names a file of the hub."""
    return str(path).startswith(SCHEME)
