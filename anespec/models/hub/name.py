"""Parse models named by their place on the Hugging Face hub:

    hf:OWNER/REPO/FILE.gguf    this file
    hf:OWNER/REPO:Q8_0         the file of the repository with this quantisation
    hf:OWNER/REPO              the best file of the repository (anespec.models.hub.choice)

Each may end in @REVISION; the default is the repository's main branch.
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
"""Parts that no repository's name contains. The cache writes `--` for a slash."""

_USUAL_END = re.compile(r"[-_.]gguf$", re.IGNORECASE)


@dataclass(frozen=True)
class HubName:
    """A file of a repository, or a repository from which a file is to be chosen.

    If `file` is None, a file is chosen, with the `quantisation` if that is given. A `revision` of None is the
    main branch.
    """

    repo: str
    file: str | None = None
    revision: str | None = None
    quantisation: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a name; raises UsageError for anything else."""
        found = _NAME.fullmatch(text)
        if (
            found is None
            or _NO_REPOSITORY.search(found["repo"])
            or not all(is_plain(found[part] or "-") for part in ("file", "revision"))
        ):
            raise UsageError(
                f"{quoted(text)} is not a file of the hub; write hf:OWNER/REPO/FILE.gguf, hf:OWNER/REPO:Q8_0 "
                "or hf:OWNER/REPO, and add @REVISION for another version than the newest"
            )
        return cls(found["repo"], found["file"], found["revision"], found["quantisation"])

    def __str__(self) -> str:
        file = "" if self.file is None else f"/{self.file}"
        kind = "" if self.quantisation is None else f":{self.quantisation}"
        at = "" if self.revision is None else f"@{self.revision}"
        return f"{SCHEME}{self.repo}{file}{kind}{at}"

    @property
    def name(self) -> str:
        """Return the file's name; if no file is chosen yet, the repository's name with the quantisation."""
        if self.file is not None:
            return self.file.rpartition("/")[2]
        repository = _USUAL_END.sub("", self.repo.rpartition("/")[2])
        return repository if self.quantisation is None else f"{repository}-{self.quantisation}"


def is_plain(path: str) -> bool:
    """Return whether the path of a file or a revision stays inside its folder and needs no quoting."""
    parts = path.split("/")
    return path.isprintable() and "\\" not in path and not {"", ".", ".."} & set(parts)


def is_hub_name(path: Path) -> bool:
    """Return whether a path names a file of the hub."""
    return str(path).startswith(SCHEME)
