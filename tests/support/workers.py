"""Verifiers over workers in Python, of whatever artifact."""

import sys
from pathlib import Path

from anespec.manifests.store import Artifact
from anespec.runtime.backends.embedding import open_embedding
from anespec.runtime.backends.worker.crew import WorkerLimits
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.backends.worker.stages import Stage, stages_of
from anespec.runtime.backends.worker.verifier import WorkerVerifier

ANY_BUILD = "00" * 32
HERE = Path(__file__).parent
EACH_ALONE = 1
"""A budget that lets no two shards be in one worker."""


FAKE = WorkerProgram((sys.executable, "-P", str(HERE / "fake_worker.py")), ANY_BUILD)
"""Over the portable backend: its bits, and seconds to start."""

TOY = WorkerProgram((sys.executable, "-I", "-S", str(HERE / "toy_worker.py")), ANY_BUILD)
"""Simple numbers, and milliseconds to start."""


def stages(artifact: Artifact) -> tuple[Stage, ...]:
    """An artifact's stages, its packages as they are in place of compiled ones."""
    shards = artifact.manifest.shards
    return stages_of(artifact.manifest, shards, {s.path: artifact.root / s.path for s in shards})


def open_workers(artifact: Artifact, limits: WorkerLimits, worker: WorkerProgram = FAKE) -> WorkerVerifier:
    """A verifier over workers."""
    return WorkerVerifier(artifact.manifest, open_embedding(artifact), stages(artifact), worker, limits)
