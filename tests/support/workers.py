"""Verifiers over workers, of whatever artifact."""

import sys
from pathlib import Path

from anespec.manifests.store import Artifact
from anespec.runtime.backends.embedding import open_embedding
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.runtime.backends.worker.stages import Stage, stages_of
from anespec.runtime.backends.worker.verifier import WorkerVerifier

HERE = Path(__file__).parent
STAND_IN_SERVER = "ANESPEC_STANDIN_SERVER"

TOY = WorkerProgram((sys.executable, "-I", "-S", str(HERE / "toy_worker.py")), "toy", compared=False)
"""Simple numbers, and milliseconds to start."""

EACH_ALONE = 1
"""A budget that lets no two shards be in one worker."""


def stages(artifact: Artifact) -> tuple[Stage, ...]:
    """An artifact's stages; stand-ins for compiled shards lie beside it."""
    manifest = artifact.manifest
    shards = [way for shard in manifest.shards for way in manifest.ways_through(shard)]
    return stages_of(
        artifact.manifest, shards, {shard.path: compiled(artifact, shard.path) for shard in shards}
    )


def compiled(artifact: Artifact, path: str) -> Path:
    """What stands for a compiled shard."""
    folder = artifact.root.parent / "compiled" / f"{Path(path).stem}.mlmodelc"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package").write_text(str(artifact.root / path))
    return folder


def open_workers(artifact: Artifact, limits: WorkerLimits, worker: WorkerProgram) -> WorkerVerifier:
    """A verifier over workers."""
    return WorkerVerifier(artifact.manifest, open_embedding(artifact), stages(artifact), worker, limits)
