"""Find the files of an artifact that differ from its manifest: no recorded verdict holds for those."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from anespec.manifests.errors import AnespecError, ArtifactError, StorageError
from anespec.manifests.formatting import counted, printable
from anespec.manifests.store import Artifact


@dataclass(frozen=True)
class Damage:
    """A damaged file, or a shard's folder, and the error that opening it raises."""

    path: str
    error: AnespecError

    def said(self, root: Path) -> str:
        """Return what is wrong with it, without the path of the artifact's folder `root`."""
        return str(self.error).removeprefix(f"{root}/")


def find_damage(artifact: Artifact) -> tuple[Damage, ...]:
    """Compare every file with its hash in the manifest, unless `artifact.hashes` knows the file already."""
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
    """One sentence on what is damaged, and what that means for the verdicts on record."""
    name, parts = printable(artifact.root.resolve().name), counted(len(artifact.manifest.shards) + 1, "part")
    return (
        f"{name} is damaged in {len(damage)} of {parts}, so no verdict on it holds and it does not run: "
        f"{damage[0].said(artifact.root)}"
    )
