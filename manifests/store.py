"""Open an artifact on disk, check its files at first use, and hash packages."""

import hashlib
import io
import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from operator import getitem
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from anespec.gguf.other_weights import refuse_other_weights
from anespec.gguf.parts import part_paths
from anespec.manifests.notes import GATES_FOLDER, LARGEST_JSON, Notes
from anespec.manifests.schema import SCHEMA_VERSION, Manifest, Shard
from anespec.manifests.verdicts import VerdictFile, VerdictT
from anespec.system.errors import AnespecError, ArtifactError, NotFoundError, StorageError
from anespec.system.formatting import LONGEST_REASON, counted, printable, quoted
from anespec.system.safe_files import Folder, first_link, open_plain_file

# The fingerprint binds a verdict to an artifact: it covers the manifest, and all its files by their hashes.

UNBOUND: Mapping[str, str] = MappingProxyType(
    {
        "source.name": "only helps to find the GGUF again, which its hash identifies",
        "source.read_from": "only helps to find the GGUF again, which its hash identifies",
        "built_with": "names the tools that wrote the files; nothing that runs the files reads it",
    }
)
"""The fields that affect no bit, with the reasons. The fingerprint covers all others, also new ones."""


ADDED: Mapping[str, Any] = MappingProxyType({"tokens.embedding_norm": None, "tokens.position_tensor": None})
"""Fields that were added later, with the value that earlier artifacts imply. A field with this value is left
out of the fingerprint, so that the fingerprints of earlier artifacts stay."""


def manifest_fingerprint(manifest: Manifest) -> str:
    """Return the SHA-256 of the manifest in canonical JSON, without the fields in UNBOUND."""
    facts: dict[str, Any] = manifest.model_dump(mode="json")
    for path in UNBOUND:
        *parents, field = path.split(".")
        del reduce(getitem, parents, facts)[field]
    for path, implied in ADDED.items():
        *parents, field = path.split(".")
        parent = reduce(getitem, parents, facts)
        if parent[field] == implied:
            del parent[field]
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


MANIFEST_NAME = "manifest.json"
HASH_CHUNK_BYTES = 1 << 18
SHOWN_DIGITS = 12

FileT = TypeVar("FileT", bound=VerdictFile[Any])


class Hashes(Protocol):
    """Returns the SHA-256 of files and packages, computed or cached (see `file_sha256`, `package_sha256`)."""

    def file(self, path: Path) -> str:
        """Return the hash of a file; raise OSError, or StorageError if the file changes meanwhile."""
        ...

    def package(self, path: Path) -> str:
        """Return the hash of a package; raises like `file` and `package_files`."""
        ...


class ReadHashes:
    """Hashes that are computed anew in every call."""

    def file(self, path: Path) -> str:
        """Return the hash of a file; see Hashes."""
        return file_sha256(path)

    def package(self, path: Path) -> str:
        """Return the hash of a package; see Hashes."""
        return package_sha256(path)


class Artifact:
    """An artifact folder whose manifest has been read. Other files are checked when they are first used."""

    def __init__(self, root: Path | str, hashes: Hashes | None = None, sequences: int | None = None) -> None:
        """Read the manifest. `hashes` returns the hashes of files; None computes them.

        `sequences` is the number of sequences that will run at a time, if fewer than the states hold; None
        means all. Backends whose passes attend to all slots ignore it.

        Raises:
            ArtifactError: the folder is no artifact, or its manifest has another schema version or is
            damaged.
            UnsupportedModelError: the folder has weights that are not GGUF.
            StorageError: the folder does not exist, or the manifest cannot be read.
        """
        self.root = Path(root)
        self.hashes = hashes or ReadHashes()
        self.sequences = sequences
        self._verified: set[str] = set()
        path = self.root / MANIFEST_NAME
        try:
            with Folder.open(self.root) as folder:
                text = folder.read(MANIFEST_NAME, LARGEST_JSON)
            data = from_json(text)
        except (FileNotFoundError, NotADirectoryError):
            refuse_other_weights(self.root)
            if not self.root.exists():
                raise NotFoundError(f"{self.root}: no such artifact") from None
            raise ArtifactError(
                f"{self.root}: is not an artifact (it has no {MANIFEST_NAME}); "
                "make one with `anespec convert`"
            ) from None
        except OSError as error:
            raise StorageError(f"{path}: cannot be read ({error.strerror})") from error
        except ValueError:
            raise ArtifactError(f"{path}: is not JSON; convert the model again") from None
        version = data.get("schema_version") if isinstance(data, dict) else None
        if type(version) is not int or version != SCHEMA_VERSION:
            raise ArtifactError(
                f"{path}: has schema version {printable(str(version))}, but this anespec reads "
                f"{SCHEMA_VERSION}; convert the model again: "
                f"`anespec convert MODEL.gguf -o {self.root} --force`"
            )
        try:
            self.manifest = Manifest.model_validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            place = printable(".".join(str(part) for part in first["loc"]))
            what = f"{place} is invalid" if place else "contradicts itself"
            reason = printable(first["msg"].removeprefix("Value error, "), LONGEST_REASON)
            raise ArtifactError(f"{path}: {what} ({reason}); convert the model again") from None

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 over everything that affects results: the manifest, and all files by their hashes."""
        return manifest_fingerprint(self.manifest)

    def tokens_path(self) -> Path:
        """Return the path of tokens.gguf, after a check of its size, and the first time of its hash.

        Raises:
            ArtifactError: the file is missing or differs from the manifest.
        """
        tokens = self.manifest.tokens
        path = self._inside(tokens.path)
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            raise ArtifactError(f"{path}: is missing; convert the model again")
        if size != tokens.bytes:
            raise _mismatch(path, "size in bytes", size, tokens.bytes)
        if self._tokens_sha256 != tokens.sha256:
            raise _mismatch(path, "sha256", _begun(self._tokens_sha256), _begun(tokens.sha256))
        return path

    @cached_property
    def _tokens_sha256(self) -> str:
        return self.hashes.file(self._inside(self.manifest.tokens.path))

    def shard_path(self, shard: Shard, *, verify: bool = True) -> Path:
        """Return the path of a shard, after a check of its size, and the first time of its hash.

        Without `verify` the hash is not checked.

        Raises:
            ArtifactError: the shard is missing or differs from the manifest.
        """
        path = self._inside(shard.path)
        if not path.is_dir():
            raise ArtifactError(f"{path}: the shard is missing; convert the model again")
        size = package_bytes(path)
        if size != shard.bytes:
            raise _mismatch(path, "size in bytes", size, shard.bytes)
        if verify and shard.path not in self._verified:
            digest = self.hashes.package(path)
            if digest != shard.sha256:
                raise _mismatch(path, "sha256", _begun(digest), _begun(shard.sha256))
            self._verified.add(shard.path)
        return path

    def verify_shards(self) -> None:
        """Check the size and, the first time, the hash of every shard; raises like `shard_path`."""
        for shard in self.manifest.shards:
            self.shard_path(shard)

    def _inside(self, relative: str) -> Path:
        if ".." in PurePosixPath(relative).parts:
            raise ArtifactError(
                f"{self.root / MANIFEST_NAME}: the path {relative!r} is outside the artifact; "
                "convert the model again"
            )
        if (link := first_link(self.root, relative)) is not None:
            raise ArtifactError(
                f"{link}: is a link, and links inside an artifact are not followed; replace it by its target"
            )
        return self.root / relative

    @property
    def gates(self) -> Path:
        """The folder of the gates' verdicts."""
        return self.root / GATES_FOLDER

    def read_verdicts(self, kind: type[FileT]) -> FileT:
        """Return a gate's verdicts, an empty file if there are none or they are unreadable.

        If both the user's cache folder and the artifact have a verdict for the same circumstances, the one in
        the cache folder is valid. Unreadable verdicts prove nothing, so they count as missing.
        """
        return self._notes.read(kind)

    def unreadable_verdicts(self, kinds: Iterable[type[VerdictFile[Any]]]) -> tuple[str, ...]:
        """Return the gates whose file exists but is unreadable; `read_verdicts` treats it as empty."""
        return tuple(
            kind.gate
            for kind in kinds
            if os.path.lexists(self.gates / f"{kind.gate}.json") and not self.read_verdicts(kind).verdicts
        )

    def record_verdict(self, kind: type[VerdictFile[VerdictT]], verdict: VerdictT) -> None:
        """Add a verdict to its gate's file atomically, also if other processes add theirs at the same time.

        If the artifact is read-only or another user's, the verdict is written to the user's cache folder.

        Raises:
            StorageError: neither folder can be written.
        """
        self._notes.record(kind, verdict)

    def write_page(self, name: str, content: bytes) -> Path:
        """Write a report page to the artifact or, if that is impossible, to the user's cache folder.

        Return its path.

        Raises:
            StorageError: neither folder can be written.
        """
        return self._notes.write(name, content)

    @cached_property
    def _notes(self) -> Notes:
        return Notes(self.root, self.fingerprint)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal; the file is read in chunks."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as stream:
        _digest_file(digest, stream)
    return digest.hexdigest()


def model_sha256(gguf: Path, file_hash: Callable[[Path], str] = file_sha256) -> str:
    """Return the SHA-256 of a GGUF; of one in parts, that of the hashes of all parts. Each is by `file_hash`.

    Raises:
        GGUFError: the file is not the first part, or has too many.
        OSError: a file cannot be read.
    """
    first, *others = map(file_hash, part_paths(gguf))
    return hashlib.sha256("\n".join([first, *others]).encode()).hexdigest() if others else first


def model_bytes(gguf: Path) -> int:
    """Return the bytes of a GGUF, of all its parts; raises like `model_sha256`."""
    return sum(path.stat().st_size for path in part_paths(gguf))


def package_files(path: Path) -> list[Path]:
    """Return the files of a package in a fixed order.

    Raises:
        ArtifactError: the package has something else, such as a link, whose content the hash would not cover,
            or a name that is not UTF-8.
        OSError: a folder cannot be read.
    """
    files: list[Path] = []
    for folder, folders, names in os.walk(path, onerror=_raise):
        for file in (Path(folder, name) for name in (*folders, *names)):
            mode = file.lstat().st_mode
            # The hash covers names too, in UTF-8.
            if not _is_utf8(file.name):
                raise ArtifactError(
                    f"{path}: has a file whose name is not UTF-8, {file.name!a}; convert the model again"
                )
            if stat.S_ISREG(mode):
                files.append(file)
            elif not stat.S_ISDIR(mode):
                raise ArtifactError(
                    f"{path}: {quoted(file.relative_to(path).as_posix())} is a link, a pipe or a device, but "
                    "a shard has only files; convert the model again"
                )
    return sorted(files)


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _raise(error: OSError) -> None:
    raise error


def package_bytes(path: Path) -> int:
    """Return the bytes of all files of a package; raises like `package_files`."""
    return sum(file.stat().st_size for file in package_files(path))


class PackageDigest:
    """The SHA-256 over each file's relative path, size and content, in the order of `package_files`."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.bytes = 0

    def begin(self, relative: str, size: int) -> None:
        """Begin the next file."""
        self._digest.update(f"{relative}\0{size}\0".encode())
        self.bytes += size

    def update(self, content: bytes | memoryview) -> None:
        """Add a piece of the current file's content."""
        self._digest.update(content)

    def hexdigest(self) -> str:
        """Return the digest in hexadecimal."""
        return self._digest.hexdigest()


def package_sha256(path: Path) -> str:
    """Return the PackageDigest of a package on disk, in hexadecimal; raises like `package_files`."""
    digest = PackageDigest()
    for file in package_files(path):
        digest.begin(file.relative_to(path).as_posix(), file.stat().st_size)
        with open_plain_file(file) as stream:
            _digest_file(digest, stream)
    return digest.hexdigest()


class _Digest(Protocol):
    def update(self, content: memoryview, /) -> None: ...


def _digest_file(digest: _Digest, stream: io.RawIOBase | io.BufferedReader) -> None:
    # One small buffer, which is reused, stays in a core's cache: twice as fast as new chunks.
    buffer = memoryview(bytearray(HASH_CHUNK_BYTES))
    while count := stream.readinto(buffer):
        digest.update(buffer[:count])


def _begun(digest: str) -> str:
    """Return a prefix of a hash, long enough to distinguish two in a message."""
    return f"{digest[:SHOWN_DIGITS]}…"


def _mismatch(path: Path, what: str, found: object, expected: object) -> ArtifactError:
    return ArtifactError(
        f"{path}: {what} is {found}, but the manifest says {printable(str(expected))}; "
        "the file changed since it was made: convert the model again"
    )


@dataclass(frozen=True)
class Damage:
    """A damaged file or shard, and the error that opening it raises."""

    path: str
    error: AnespecError

    def said(self, root: Path) -> str:
        """Return the error's text without the path of the artifact's folder `root`."""
        return str(self.error).removeprefix(f"{root}/")


def find_damage(artifact: Artifact) -> tuple[Damage, ...]:
    """Compare every file with its hash in the manifest; return the damaged ones."""
    manifest = artifact.manifest
    checks: list[tuple[str, Callable[[], Path]]] = [
        (shard.path, partial(artifact.shard_path, shard)) for shard in manifest.shards
    ]
    checks.append((manifest.tokens.path, artifact.tokens_path))
    return tuple(
        Damage(path, error) for path, check in checks if (error := _raised(artifact, path, check)) is not None
    )


def _raised(artifact: Artifact, path: str, check: Callable[[], Path]) -> AnespecError | None:
    try:
        check()
    except (ArtifactError, StorageError) as error:
        return error
    except OSError as error:
        return StorageError(f"{artifact.root / path}: cannot be read ({error.strerror})")
    return None


def damage_sentence(artifact: Artifact, damage: tuple[Damage, ...]) -> str:
    """Return a sentence on the damage, and what it means for the recorded verdicts."""
    name, parts = printable(artifact.root.resolve().name), counted(len(artifact.manifest.shards) + 1, "part")
    return (
        f"{name} is damaged in {len(damage)} of {parts}, so no verdict on it is valid and it does not run: "
        f"{damage[0].said(artifact.root)}"
    )
