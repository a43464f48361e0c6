"""A shard that a worker died of, or that Core ML refused, is remembered, and is not tried at every start."""

import json
import platform
import shutil
from contextlib import closing
from math import prod
from pathlib import Path

import pytest
from by_hand import states

from anespec.manifests.channel_layout import shape_at
from anespec.manifests.store import Artifact
from anespec.runtime.backends import WORKER
from anespec.runtime.backends.portable.package_server import Packages
from anespec.runtime.backends.worker import backend as backend_module
from anespec.runtime.backends.worker.backend import WorkerBackend
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.system.coreml_errors import ended_by, error_sentence
from anespec.system.errors import AnespecError, ArtifactError

CRASH = error_sentence(ended_by(6))


@pytest.fixture
def artifact(small: Artifact, tmp_path: Path) -> Artifact:
    """A copy that is compiled nowhere yet."""
    skipped = shutil.ignore_patterns("compiled", "gates")
    return Artifact(shutil.copytree(small.root, tmp_path / "m.anespec", ignore=skipped))


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where faults are planted; none yet."""
    if platform.system() != "Linux":
        pytest.skip("the stand-in is for Linux")
    monkeypatch.setenv("ANESPEC_STANDIN_PYTHON", "python")
    path = tmp_path / "faults.json"
    monkeypatch.setenv("ANESPEC_STANDIN_FAULTS", str(path))
    path.write_text("[]")
    return path


def plant(faults: Path, **fault: object) -> None:
    faults.write_text(json.dumps([fault]))


def backend(worker: WorkerProgram, budget: int = 1 << 30) -> WorkerBackend:
    return WorkerBackend(WORKER, WorkerLimits(budget), find=lambda: worker)


def notes(artifact: Artifact) -> list[Path]:
    """Those of failures."""
    kept = sorted((artifact.root / "compiled").glob("*.json"))
    return [path for path in kept if json.loads(path.read_text())["error"] is not None]


def nobody_starts(patch: pytest.MonkeyPatch) -> None:
    def started(*_: object) -> None:
        pytest.fail("a worker was started")

    patch.setattr(backend_module, "WorkerVerifier", started)


@pytest.mark.fast_only("1")
@pytest.mark.parametrize("budget", [1 << 30, 1])
def test_a_shard_that_workers_die_of_is_found_named_and_not_tried_again(
    artifact: Artifact, swift_worker: WorkerProgram, faults: Path, budget: int
) -> None:
    """Whether it shares its worker with others, or has one for itself."""
    plant(faults, path="layer_01", at="load", action="abort")
    ours = backend(swift_worker, budget)
    with pytest.raises(ArtifactError) as first:
        ours.open(artifact, 1)
    assert str(first.value) == f"shards/layer_01.mlpackage: {CRASH}"
    (note,) = notes(artifact)
    assert note.name.startswith("layer_01.")
    assert note.name.endswith(".worker-by hand.json")
    with pytest.MonkeyPatch.context() as patch:
        nobody_starts(patch)
        with pytest.raises(ArtifactError, match="in an earlier load probe; to try again remove") as again:
            ours.open(artifact, 1)
    assert str(again.value).startswith(str(first.value))
    faults.write_text("[]")
    note.unlink()
    ours.open(artifact, 1).close()


def test_another_build_and_another_compilation_try_again(
    artifact: Artifact, swift_worker: WorkerProgram, faults: Path
) -> None:
    plant(faults, path="layer_01", at="load", action="fail", code=0, text="an unknown complaint")
    with pytest.raises(ArtifactError, match=r"layer_01.*an unknown complaint"):
        backend(swift_worker).open(artifact, 1)
    assert len(notes(artifact)) == 1
    faults.write_text("[]")
    newer = WorkerProgram(swift_worker.command, "built again", compared=False)
    backend(newer).open(artifact, 1).close()
    with pytest.raises(ArtifactError, match="in an earlier load probe"):
        backend(swift_worker).open(artifact, 1)
    backend(swift_worker).open_again(artifact, 1).close()
    assert not notes(artifact)


@pytest.mark.parametrize(
    ("action", "text"), [("kill", "was killed, 3 times in a row .*--worker-budget"), ("fail", "disk is")]
)
def test_what_may_pass_is_not_remembered(
    artifact: Artifact, swift_worker: WorkerProgram, faults: Path, action: str, text: str
) -> None:
    plant(faults, path="layer_01", at="load", action=action, text="No space left on device")
    with pytest.raises(AnespecError, match=text):
        backend(swift_worker).open(artifact, 1)
    assert not notes(artifact)
    faults.write_text("[]")
    backend(swift_worker).open(artifact, 1).close()


def test_a_shard_that_a_worker_dies_of_in_its_first_pass_is_found_too(
    artifact: Artifact, swift_worker: WorkerProgram, faults: Path
) -> None:
    """Loading goes well, as it does of packages that kill whoever predicts with them (coremltools#2758)."""
    plant(faults, path="layer_01", at="predict", action="abort")
    with pytest.raises(ArtifactError) as first:
        backend(swift_worker).open(artifact, 1)
    assert str(first.value) == f"shards/layer_01.mlpackage: {CRASH}"
    assert [note.name.partition(".")[0] for note in notes(artifact)] == ["layer_01"]


def test_what_starting_takes_is_kept_and_the_worker_that_met_a_shard_runs_it(
    artifact: Artifact, swift_worker: WorkerProgram, faults: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = backend(swift_worker)
    assert ours.starts(artifact) is None
    with caplog.at_level("INFO"), closing(ours.open(artifact, 1)) as verifier:
        assert sum("first loaded by the process that runs it" in line for line in caplog.messages) == len(
            artifact.manifest.shards
        )
        assert not any(state.any() for state in states(verifier))
        stats = verifier.workers.ask(0, "stats", {})
        assert stats["passes"] == 0
        assert set(stats["stages"]) == {0.0}
    met = ours.starts(artifact)
    assert met is not None
    assert met.last is None
    assert [each.rows for each in met.first.passes] == list(artifact.manifest.widths)
    ours.open(artifact, 1).close()
    again = ours.starts(artifact)
    assert again is not None
    assert again.first == met.first
    assert again.last is not None


@pytest.mark.slow
@pytest.mark.usefixtures("openvino_computes")
def test_first_passes_write_slots_of_their_own(
    artifact: Artifact, swift_worker: WorkerProgram, faults: Path
) -> None:
    with closing(backend(swift_worker).open(artifact, 1)) as verifier:
        pool = artifact.manifest.pools[0]
        for width in artifact.manifest.widths:
            # What fills them in for passes begins with zeros.
            assert not verifier.shared.tensor(f"{pool.write_input}@{width}").any()


def test_a_question_that_cannot_be_answered_does_not_end_the_server(small: Artifact) -> None:
    packages = Packages("openvino")
    shard = small.manifest.layer_shards[0]
    opened, _ = packages.answer({"op": "open", "path": str(small.shard_path(shard)), "function": None}, b"")
    listed = [{"name": spec.name, "shape": shape_at(spec.shape, 1)} for spec in shard.inputs]
    states = [{"name": state.name, "shape": state.shape} for state in shard.states]
    question = {"op": "predict", "model": opened["model"], "inputs": listed, "states": states}
    zeros = bytes(2 * sum(prod(each["shape"]) for each in [*listed, *states]))
    answer, _ = packages.answer(question, zeros)
    assert "write mask" in answer["error"]
