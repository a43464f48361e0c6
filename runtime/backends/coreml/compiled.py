"""Compile an artifact's shards with Core ML, and keep the results from one start to the next.

They are stored in the artifact's `compiled/`, or in the user's cache folder if the artifact is read-only. A
compiled shard is valid for one shard, one build of the system and one compiler; its name holds a hash of
them. After an upgrade the shard is compiled again and the old result is removed. A compilation gets its name
by renaming at the end, so a folder with the name is complete.
"""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from anespec.manifests.schema import Shard
from anespec.manifests.store import Artifact
from anespec.system.coreml_errors import error_sentence, known_error
from anespec.system.errors import AnespecError, ArtifactError, StorageError
from anespec.system.machine import system_build
from anespec.system.safe_files import Folder, first_link
from anespec.system.user_folders import cache_folder, private_folder

COMPILED_FOLDER = "compiled"
SUFFIX = ".mlmodelc"
PARTIAL = re.compile(r"\.(\d+)\.[0-9a-f]+\.partial\..+")
"""The name of a compilation in progress, or of its working folder; the number is the id of the process."""

KEY_DIGITS = 16

Report = Callable[[str], None]
"""A callback for progress; its argument describes the next step."""


class CompileRefusedError(ArtifactError):
    """Core ML did not compile a package; `text` is its error message."""

    def __init__(self, package: Path, text: str) -> None:
        super().__init__(f"{package}: {error_sentence(text)}")
        self.text = text


class Compiler(Protocol):
    """A compiler of packages; a call may raise any exception."""

    def compile(self, package: Path, destination: Path) -> Path:
        """Compile to `destination`, which ends in .mlmodelc and must not exist; return it."""
        ...

    def version(self) -> str:
        """Return the identity of the compiler; results of another version are not used."""
        ...


@dataclass(frozen=True)
class CompiledShard:
    """The path of a compiled shard; `made` is true if it was compiled just now."""

    shard: Shard
    path: Path
    made: bool

    @property
    def doubt(self) -> str | None:
        """The advice to give if Core ML refuses the shard: an earlier compilation may be damaged."""
        return None if self.made else f"it was compiled before; to compile it again remove {self.path}"

    def beside(self, suffix: str) -> Path:
        """Return the path of a file about this compiled shard; `discard` removes both."""
        return self.path.with_name(f"{self.path.name.removesuffix(SUFFIX)}.{suffix}")


def compiled_shard(artifact: Artifact, shard: Shard, compiler: Compiler, report: Report) -> CompiledShard:
    """Return a compiled shard; compile it if there is no valid earlier compilation.

    Raises:
        CompileRefusedError: Core ML refuses the shard.
        ArtifactError: the shard is missing or damaged.
        StorageError: there is no space for it, or no folder that can be written.
    """
    if (known := known_shard(artifact, shard, compiler)) is not None:
        return known
    name = _name(shard, compiler)
    package = artifact.shard_path(shard)
    report(f"compiling {shard.path}")
    with _writable(artifact) as folder:
        _sweep(folder)
        path = _compile(package, folder, name, compiler)
        _remove_others(folder, shard, name)
    return CompiledShard(shard, path, made=True)


def known_shard(artifact: Artifact, shard: Shard, compiler: Compiler) -> CompiledShard | None:
    """Return a shard's earlier compilation; None if there is none, or if it is from another build or version.

    A path behind a symbolic link is ignored: whoever made the link could have put any program there.
    """
    name = _name(shard, compiler)
    for root, place in ((artifact.root, COMPILED_FOLDER), (_cache(artifact), ".")):
        if _is_whole(path := root / place / name) and first_link(root, f"{place}/{name}") is None:
            return CompiledShard(shard, path, made=False)
    return None


def _is_whole(path: Path) -> bool:
    return path.is_dir() and any(path.iterdir())


def discard(compiled: CompiledShard) -> None:
    """Remove a compiled shard and the notes on it, so that it is compiled again.

    Raises:
        StorageError: it cannot be removed.
    """
    stem = compiled.path.name.removesuffix(SUFFIX)
    try:
        with Folder.open(compiled.path.parent) as folder:
            for path in compiled.path.parent.iterdir():
                if path.name.startswith(f"{stem}."):
                    folder.remove(path.name)
    except OSError as error:
        raise StorageError(f"{compiled.path}: cannot be removed ({error.strerror})") from error


def _name(shard: Shard, compiler: Compiler) -> str:
    facts = "\0".join((shard.sha256, system_build(), compiler.version()))
    return f"{_stem(shard)}.{hashlib.sha256(facts.encode()).hexdigest()[:KEY_DIGITS]}{SUFFIX}"


def _stem(shard: Shard) -> str:
    return Path(shard.path).stem


def _cache(artifact: Artifact) -> Path:
    return cache_folder() / COMPILED_FOLDER / artifact.fingerprint[:KEY_DIGITS]


@contextlib.contextmanager
def _writable(artifact: Artifact) -> Iterator[Folder]:
    """Yield the folder for compiled shards: the artifact's, or the cache folder if that is read-only."""
    with contextlib.ExitStack() as stack:
        try:
            root = stack.enter_context(Folder.open(artifact.root))
            folder = stack.enter_context(root.folder(COMPILED_FOLDER, create=True))
            if os.access(folder.path, os.W_OK):
                yield folder
                return
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise StorageError(
                    f"{artifact.root / COMPILED_FOLDER}: cannot be written ({error.strerror})"
                ) from error
        yield stack.enter_context(private_folder(_cache(artifact)))


def _compile(package: Path, folder: Folder, name: str, compiler: Compiler) -> Path:
    partial = f".{os.getpid()}.{secrets.token_hex(8)}.partial{SUFFIX}"
    try:
        compiler.compile(package, folder.path / partial)
        if not stat.S_ISDIR(folder.mode(name) or stat.S_IFDIR):
            folder.remove(name)
        # Another process may have compiled the same shard meanwhile; its folder is equivalent.
        with contextlib.suppress(FileExistsError), _suppressed(errno.ENOTEMPTY):
            folder.rename(partial, name)
        folder.sync()
    except AnespecError:
        raise
    except OSError as error:
        raise StorageError(
            f"{folder.path}: {package.name} cannot be compiled there ({error.strerror})"
        ) from error
    except Exception as error:
        # Core ML's errors arrive as RuntimeError, ValueError or plain Exception.
        raise _refused(package, str(error)) from error
    finally:
        with contextlib.suppress(OSError):
            folder.remove(partial)
    return folder.path / name


def _refused(package: Path, text: str) -> AnespecError:
    known = known_error(text)
    if known is not None and known.code == "no space":
        return StorageError(f"{package}: {known.sentence}")
    return CompileRefusedError(package, text)


@contextlib.contextmanager
def _suppressed(number: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != number:
            raise


def _sweep(folder: Folder) -> None:
    """Remove the partial results of compilations whose process was killed."""
    for path in folder.path.iterdir():
        found = PARTIAL.fullmatch(path.name)
        if found is not None and not psutil.pid_exists(int(found[1])):
            with contextlib.suppress(OSError):
                folder.remove(path.name)


def _remove_others(folder: Folder, shard: Shard, name: str) -> None:
    """Remove this shard's compilations by other builds of the system, and of its other versions."""
    kept = name.removesuffix(SUFFIX)
    made = re.compile(re.escape(_stem(shard)) + rf"\.[0-9a-f]{{{KEY_DIGITS}}}\.")
    for path in folder.path.iterdir():
        if made.match(path.name) and not path.name.startswith(f"{kept}."):
            with contextlib.suppress(OSError):
                folder.remove(path.name)
