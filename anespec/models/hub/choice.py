"""Choose the GGUF of a repository for a name without a file, with or without a quantisation.

Q8_0 is preferred, since a converted model has about 8 bits per weight by default. A larger file gains almost
nothing. A smaller file has lost precision that no conversion restores, and takes no less memory.
"""

import errno
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from anespec.gguf.parts import SUFFIX, PartName, first_part, stem_of
from anespec.models.hub.name import HubName, is_plain
from anespec.models.hub.request import MAIN, ask_hub, following, hub_url
from anespec.models.url.connection import Broken
from anespec.runtime.backends import USUAL_MEMORY_FACTOR
from anespec.system.errors import RequestError, StorageError
from anespec.system.formatting import LONGEST_REASON, bytes_text, named, printable, quoted
from anespec.system.safe_files import Folder, read_bounded

# The cache of huggingface_hub, in its own layout, so that other programs find the files.
#
# ROOT/models--OWNER--REPO/blobs/ETAG               a file's bytes
# ROOT/models--OWNER--REPO/snapshots/COMMIT/FILE    a link to them
# ROOT/models--OWNER--REPO/refs/REVISION            the commit, as text
#
# If HF_HOME is shared, other users can write there too. Writing follows no link below ROOT, and only checked
# hashes and plain names become names of files.

COMMIT = re.compile(r"[0-9a-f]{40}")

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
"""Errors of file systems without links."""


@dataclass(frozen=True)
class HubCache:
    """The downloaded files of one repository."""

    root: Path
    repository: str

    @classmethod
    def of(cls, name: HubName) -> Self:
        """Return the cache of a name's repository."""
        from huggingface_hub import constants

        return cls(Path(constants.HF_HUB_CACHE), f"models--{name.repo.replace('/', '--')}")

    def commit(self, revision: str | None) -> str | None:
        """Return the last known commit of a revision (None: the main branch); None if it is not stored."""
        if revision is not None and COMMIT.fullmatch(revision):
            return revision
        try:
            said = read_bounded(self.root / self.repository / "refs" / (revision or MAIN), 64)
        except (OSError, StorageError):
            return None
        commit = said.decode(errors="replace").strip()
        return commit if COMMIT.fullmatch(commit) else None

    def snapshot(self, commit: str) -> Path:
        """Return the folder of a commit's files, whether it exists or not."""
        return self.root / self.repository / "snapshots" / commit

    def file(self, commit: str | None, file: str) -> Path | None:
        """Return the path of a commit's file; None if it is not in the cache."""
        if commit is None:
            return None
        path = self.snapshot(commit) / file
        try:
            return path if path.is_file() else None
        except OSError:
            # The name is too long for the file system.
            return None

    def blobs(self) -> AbstractContextManager[Folder]:
        """Open the folder of the files' bytes, made where it is missing; raise as Folder does.

        The other folders are opened first, so that an unusable one is found before a long download.
        """
        for name in ("snapshots", "refs"):
            with self._folder(name):
                pass
        return self._folder("blobs")

    def link(self, commit: str, file: str, etag: str) -> Path:
        """Link the bytes in `blobs` into a commit's folder; raise as Folder does."""
        *folders, last = file.split("/")
        with self._folder("snapshots", commit, *folders) as folder, self.blobs() as blobs:
            try:
                folder.replace_link(last, f"{'../' * (len(folders) + 2)}blobs/{etag}")
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                blobs.move(etag, folder, last)
        return self.snapshot(commit) / file

    def remember(self, revision: str | None, commit: str) -> None:
        """Store the commit that a revision has now; raise as Folder does."""
        if commit != self.commit(revision):
            *folders, last = (revision or MAIN).split("/")
            with self._folder("refs", *folders) as folder:
                folder.replace(last, commit.encode(), durable=False)

    @contextmanager
    def _folder(self, *names: str) -> Iterator[Folder]:
        self.root.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            folder = stack.enter_context(Folder.open(self.root))
            for name in (self.repository, *names):
                folder = stack.enter_context(folder.folder(name, create=True))
            yield folder


PREFERRED_QUANTISATION = "Q8_0"
CONVERTED_BITS = 8.0
"""Bits per weight that `convert` produces by default."""

_QUANTISATION = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:(?:IQ|TQ|Q)\d(?:_[0-9A-Z]+)*|MXFP4(?:_MOE)?|BF16|F16|FP16|F32|FP32))(?=[-._]|$)",
    re.IGNORECASE,
)
_OTHER_FILES = re.compile(r"mmproj|imatrix", re.IGNORECASE)


@dataclass(frozen=True)
class HubFile:
    """A file of a repository: its path in the repository, and its size in bytes.

    A model in parts is one, too: it has the path of the first part and the size of all together.
    """

    path: str
    bytes: int

    @cached_property
    def quantisation(self) -> str | None:
        """Return the quantisation in the file's name, in capitals; None if there is none."""
        found = _QUANTISATION.findall(stem_of(self.path).rpartition("/")[2])
        return found[-1].upper() if found else None

    @property
    def bits(self) -> float:
        """Return the approximate bits per weight, scales included; 0 if unknown."""
        kind = (self.quantisation or "").removeprefix("UD-")
        digits = re.search(r"\d+", kind)
        if digits is None:
            return 0.0
        return float(digits[0]) + (0.0 if "F" in kind and kind != "MXFP4" else 0.5)

    @property
    def memory(self) -> int:
        """Return roughly the bytes that the model takes in use."""
        grown = CONVERTED_BITS / self.bits if self.bits else 1.0
        return int(USUAL_MEMORY_FACTOR * self.bytes * max(1.0, grown))

    @property
    def is_model(self) -> bool:
        """Return whether the file may be a language model, and its path is safe to use."""
        name = self.path.rpartition("/")[2]
        return name.endswith(".gguf") and is_plain(self.path) and not _OTHER_FILES.search(name)


@dataclass(frozen=True)
class Choice:
    """The chosen file, and the reason as a clause."""

    file: HubFile
    reason: str


def choose(name: HubName, files: Sequence[HubFile], memory: int) -> Choice:
    """Choose the file that `name` refers to, on a machine with `memory` bytes for a model.

    Raises:
        RequestError: there is no such file, there are several, or none fits; the message lists what there is.
    """
    models = [file for file in files if file.is_model]
    if not models:
        raise RequestError(f"{name}: the repository has no GGUF of a language model")
    whole, lacking_parts = _whole_models(models)
    if name.quantisation is not None:
        found = _called(name.quantisation, whole)
        if not found:
            if broken := _called(name.quantisation, lacking_parts):
                raise _lacks_parts(name, broken[0])
            has = named(_kinds(whole) or _paths(models))
            raise RequestError(f"{name}: the repository has no {quoted(name.quantisation)}; it has {has}")
        return Choice(_only(name, found), "as asked for")
    if not whole:
        raise _lacks_parts(name, lacking_parts[0])
    fitting = [file for file in whole if file.memory <= memory]
    if not fitting:
        least = min(whole, key=lambda file: file.memory)
        raise RequestError(
            f"{name}: none of its GGUFs fits, as {printable(least.path)} takes about "
            f"{bytes_text(least.memory)} of memory and this machine allows {bytes_text(memory)}; name one to "
            f"take it all the same, as in {_written(name, least)}"
        )
    preferred = _called(PREFERRED_QUANTISATION, fitting)
    if preferred:
        return Choice(
            _only(name, preferred), f"{PREFERRED_QUANTISATION}, which is preferred{_others(name, whole)}"
        )
    best = max(fitting, key=lambda file: file.bits)
    file = _only(name, [file for file in fitting if file.bits == best.bits])
    lacking = (
        f"its {PREFERRED_QUANTISATION} does not fit"
        if _called(PREFERRED_QUANTISATION, whole)
        else f"it has no {PREFERRED_QUANTISATION}"
    )
    return Choice(file, f"the largest that fits, as {lacking}{_others(name, whole)}")


def _whole_models(files: Sequence[HubFile]) -> tuple[list[HubFile], list[HubFile]]:
    """Return the models of which all parts are listed, and those of which some are missing; each once."""
    sizes: dict[str, dict[str, int]] = defaultdict(dict)
    paths = {file.path for file in files}
    for file in files:
        part = PartName.parse(file.path)
        if part is not None and f"{part.stem}{SUFFIX}" in paths:
            # The repository also has the parts joined.
            continue
        sizes[first_part(file.path)][file.path] = file.bytes
    whole: list[HubFile] = []
    lacking: list[HubFile] = []
    for path, parts in sizes.items():
        part = PartName.parse(path)
        is_whole = part is None or len(parts) == part.count
        (whole if is_whole else lacking).append(HubFile(path, sum(parts.values())))
    return whole, lacking


def _lacks_parts(name: HubName, file: HubFile) -> RequestError:
    return RequestError(
        f"{name}: the repository lacks parts of {printable(file.path, LONGEST_REASON)}; choose another one"
    )


def _called(quantisation: str, files: Sequence[HubFile]) -> list[HubFile]:
    """Return the files with a quantisation; if there is none, those with it after a vendor's prefix (UD-)."""
    wanted = quantisation.upper()
    exact = [file for file in files if file.quantisation == wanted]
    return exact or [file for file in files if (file.quantisation or "").removeprefix("UD-") == wanted]


def _only(name: HubName, files: Sequence[HubFile]) -> HubFile:
    if len(files) > 1:
        raise RequestError(
            f"{name}: several of its GGUFs match, {named(_paths(files))}; name one, as in "
            f"{_written(name, files[0])}"
        )
    return files[0]


def _written(name: HubName, file: HubFile) -> str:
    return printable(str(HubName(name.repo, file.path, name.revision)), 200)


def _others(name: HubName, whole: Sequence[HubFile]) -> str:
    kinds = [kind for kind in _kinds(whole) if kind != PREFERRED_QUANTISATION]
    return f"; {name}:QUANTISATION takes another ({named(kinds)})" if kinds and name.revision is None else ""


def _kinds(files: Sequence[HubFile]) -> list[str]:
    return sorted({file.quantisation for file in files if file.quantisation is not None})


def _paths(files: Sequence[HubFile]) -> list[str]:
    return sorted(file.path for file in files)


# List the files of a repository, from the hub or from the local cache.

LARGEST_LISTING = 32 << 20
"""The most bytes of all pages of a list together."""

MOST_PAGES = 100
"""The most pages of a list; the hub puts 1000 files on each."""


class _Entry(BaseModel):
    """A file or folder in the hub's list; other fields are ignored."""

    model_config = ConfigDict(strict=True)
    type: str
    path: str
    size: Annotated[int, Field(ge=0, lt=1 << 63)]


_PAGE = TypeAdapter(list[_Entry])


def list_files(name: HubName) -> list[HubFile]:
    """Return the files of a repository at a revision; if the hub cannot be reached, the downloaded ones.

    Raises:
        RequestError: there is no such repository or revision, or this user has no access to it.
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
        raise StorageError(f"{name}: the hub's answer is not a list of files; check HF_ENDPOINT") from None
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
