"""The verifier over a worker in Python that runs the portable backend: the same bits, call by call."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from by_hand import run_tokens, same_bits
from converting import build
from tiny_model import TinyModel, write_gguf

from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import open_verifier
from anespec.runtime.backends.embedding import open_embedding
from anespec.runtime.backends.worker.crew import WorkerLimits
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.backends.worker.stages import Stage, stages_of
from anespec.runtime.backends.worker.verifier import WorkerVerifier

SUPPORT = Path(__file__).parents[3] / "support"
PROGRAM = WorkerProgram((sys.executable, "-P", str(SUPPORT / "fake_worker.py")), "00" * 32)
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)
PROMPT = [1, 5, 9, 13, 17, 21, 25, 29, 33, 37]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Two layer shards and three head shards."""
    folder = tmp_path_factory.mktemp("worker")
    source = write_gguf(folder / "tiny.gguf", TinyModel())
    built = build(
        source,
        folder / "m.anespec",
        sequences=2,
        topology=(1, 1),
        head_shards=3,
        target=Target.CPU,
        weights=WeightChoice(WeightFormat.FP16),
    )
    return Artifact(built.path)


def stages(artifact: Artifact) -> tuple[Stage, ...]:
    shards = artifact.manifest.shards
    return stages_of(artifact.manifest, {s.path: artifact.root / s.path for s in shards}, WIDTHS)


def opened(artifact: Artifact, limits: WorkerLimits) -> WorkerVerifier:
    return WorkerVerifier(artifact.manifest, open_embedding(artifact), stages(artifact), PROGRAM, limits)


@pytest.fixture(scope="module", params=[1, 3_000_000_000])
def verifier(artifact: Artifact, request: pytest.FixtureRequest) -> Iterator[WorkerVerifier]:
    """Over five workers of one stage each, and over one."""
    verifier = opened(artifact, WorkerLimits(budget=request.param, pass_seconds=60))
    yield verifier
    verifier.close()


def test_it_gives_the_portable_backend_s_bits(verifier: WorkerVerifier, artifact: Artifact) -> None:
    portable = open_verifier(artifact, "torch", 1)
    assert verifier.shape.widths == WIDTHS
    assert same_bits(run_tokens(verifier, PROMPT), run_tokens(portable, PROMPT))
