"""The limits of workers reach whatever opens the artifact, in whichever process."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from anespec.manifests.schema import Shard
from anespec.manifests.store import Artifact
from anespec.runtime import backends
from anespec.runtime.backends import TORCH, WORKER, chosen_backend, circumstances
from anespec.runtime.backends.worker.backend import WorkerBackend
from anespec.runtime.backends.worker.runner import WorkerRunner
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.runtime.backends.worker.verifier import WorkerVerifier
from anespec.system.errors import AnespecError
from anespec.validate.exactness import repeat_process
from anespec.validate.opening import Opening
from anespec.validate.sample import run

LIMITS = WorkerLimits(budget=123_456_789, pass_seconds=7.5)


class OpenedError(AnespecError):
    """Ends a test where its worker would begin."""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[WorkerLimits]:
    """The limits within which workers were asked for; none is started."""
    found: list[WorkerLimits] = []

    def note(self: WorkerBackend, artifact: Artifact, threads: int, *more: object) -> WorkerVerifier:
        found.append(self.limits)
        raise OpenedError("noted")

    def note_shard(self: WorkerBackend, artifact: Artifact, shard: Shard, threads: int) -> WorkerRunner:
        found.append(self.limits)
        raise OpenedError("noted")

    (tmp_path / "worker").touch()
    monkeypatch.setenv("ANESPEC_WORKER", str(tmp_path / "worker"))
    monkeypatch.setenv("ANESPEC_STANDIN_PYTHON", sys.executable)
    monkeypatch.setattr(WorkerBackend, "open", note)
    monkeypatch.setattr(WorkerBackend, "open_shard", note_shard)
    return found


def silent(note: str, share: float | None = None) -> None:
    """No progress is shown."""


def test_a_backend_without_workers_needs_no_limits() -> None:
    assert chosen_backend(TORCH, workers=LIMITS) is backends.BACKENDS[TORCH]


def test_the_gates_open_shards_and_stacks_within_them(opened: list[WorkerLimits], embedded: Artifact) -> None:
    with pytest.raises(OpenedError):
        backends.open_verifier(embedded, WORKER, 1, LIMITS)
    with pytest.raises(OpenedError):
        backends.open_shard(embedded, embedded.manifest.shards[0], WORKER, 1, LIMITS)
    with pytest.raises(OpenedError):
        backends.open_verifier(embedded, WORKER, 1)
    assert opened == [LIMITS, LIMITS, WorkerLimits()]


def answering(monkeypatch: pytest.MonkeyPatch, module: object, asked: list[str]) -> None:
    def answer(name: str, arguments: Sequence[str], longest_wait: float) -> bytes:
        asked.extend(arguments)
        raise OpenedError("noted")

    monkeypatch.setattr(module, "child_answer", answer)


def test_processes_that_open_an_artifact_are_told_them(
    monkeypatch: pytest.MonkeyPatch, embedded: Artifact
) -> None:
    asked: list[str] = []
    answering(monkeypatch, repeat_process, asked)
    answering(monkeypatch, run, asked)
    here = circumstances(embedded, TORCH, 1)
    with pytest.raises(AnespecError, match="noted"):
        repeat_process.run_elsewhere(embedded, here, LIMITS)
    with pytest.raises(AnespecError, match="noted"):
        run.sample_run(embedded, None, TORCH, 1, silent, LIMITS)
    assert [Opening.model_validate_json(text).workers for text in asked] == [LIMITS, LIMITS]


def test_the_process_that_repeats_opens_within_them(
    monkeypatch: pytest.MonkeyPatch, opened: list[WorkerLimits], embedded: Artifact
) -> None:
    opening = Opening(artifact=str(embedded.root), backend=WORKER, threads=1, workers=LIMITS)
    with pytest.raises(AnespecError, match="noted"):
        repeat_process.answer([opening.model_dump_json()])
    assert opened == [LIMITS]
