"""The backend by name: why it cannot run, what it compiles, and what is stale."""

import platform
from contextlib import closing
from pathlib import Path

import pytest
from by_hand import run_tokens, same_bits

from anespec.manifests.store import Artifact
from anespec.runtime.backends import BACKENDS, WORKER, resolve_backend
from anespec.runtime.backends.worker import backend as backend_module
from anespec.runtime.backends.worker.backend import WorkerBackend
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.backends.worker.verifier import WorkerVerifier
from anespec.runtime.backends.worker.worker_pool import ShardRefusedError
from anespec.system.errors import ArtifactError, MissingPackageError


@pytest.fixture
def stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    if platform.system() != "Linux":
        pytest.skip("the stand-in is for Linux")
    monkeypatch.setenv("ANESPEC_STANDIN_PYTHON", "python")


def test_without_a_stand_in_linux_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANESPEC_STANDIN_PYTHON", raising=False)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    with pytest.raises(MissingPackageError, match="worker cannot run here; it needs macOS 15 or later"):
        resolve_backend(WORKER)


def test_one_that_was_not_built_is_refused_with_the_mend(stands_in: None) -> None:
    backend = WorkerBackend(WORKER, find=lambda: None)
    assert backend.unavailable() == "the worker's executable; build it with `anespec worker build`"
    with pytest.raises(MissingPackageError, match="the worker is not built; build it with `anespec worker"):
        backend.library_version()


def test_a_shard_that_an_upgrade_made_stale_is_compiled_again_once(
    stands_in: None, small: Artifact, swift_worker: WorkerProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = WorkerBackend(WORKER, find=lambda: swift_worker)
    assert backend.unavailable() is None
    assert backend.library_version().startswith("by hand, stand-in, torch ")
    with closing(backend.open(small, 1)) as verifier:
        expected = run_tokens(verifier, [1, 5, 9, 13])
    compiled = sorted((small.root / "compiled").glob("*.mlmodelc"))
    assert len(compiled) == 5
    for path in compiled:
        (path / "old").touch()
    stale = compiled[1]

    def refusing(*arguments: object) -> WorkerVerifier:
        if (stale / "old").exists():
            raise ShardRefusedError(str(stale), "the plan failed (com.apple.CoreML -14)")
        return WorkerVerifier(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(backend_module, "WorkerVerifier", refusing)
    with closing(backend.open(small, 1)) as verifier:
        assert same_bits(run_tokens(verifier, [1, 5, 9, 13]), expected)
    assert [path for path in compiled if not (path / "old").exists()] == [stale]

    def always(*arguments: object) -> WorkerVerifier:
        raise ShardRefusedError(str(stale), "the plan failed (com.apple.CoreML -14)")

    monkeypatch.setattr(backend_module, "WorkerVerifier", always)
    with pytest.raises(ArtifactError, match=r"the plan could not be built.*\(-14\); use smaller shards"):
        backend.open(small, 1)


def test_a_shard_that_is_not_there_is_said(
    stands_in: None, small: Artifact, swift_worker: WorkerProgram, tmp_path: Path
) -> None:
    backend = WorkerBackend(WORKER, find=lambda: swift_worker)
    (tmp_path / "m.anespec").mkdir()
    (tmp_path / "m.anespec" / "manifest.json").write_bytes((small.root / "manifest.json").read_bytes())
    with pytest.raises(ArtifactError, match="the shard is missing"):
        backend.open(Artifact(tmp_path / "m.anespec"), 1)
    assert BACKENDS[WORKER].name == WORKER
