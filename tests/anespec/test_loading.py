"""Opening an artifact: what is read of it, and what is closed where that fails."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

import anespec
import anespec.manifests.known_hashes as known_hashes
import anespec.runtime.backends as backends
from anespec.manifests.store import Artifact, package_sha256
from anespec.models.loading import ask_while_closed, open_artifact
from anespec.runtime.backends.coreml.start_times import FirstPass, Starts, StartTimes
from anespec.runtime.backends.worker.sharing import WorkerLimits
from anespec.runtime.options import BackendOptions
from anespec.runtime.passes import Verifier
from anespec.runtime.speculation.pass_costs import PassCosts
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import AnespecError, ArtifactError, GGUFError
from anespec.system.progress import SILENT
from anespec.validate import costs
from anespec.validate.costs import CostFile, CostVerdict
from anespec.validate.exactness import repeat_process

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")


@pytest.fixture
def artifact(stories_int8: Path, tmp_path: Path) -> Artifact:
    shutil.copytree(stories_int8, tmp_path / "own.anespec")
    return Artifact(tmp_path / "own.anespec")


@pytest.mark.slow
def test_verify_reads_what_is_remembered(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails changes no time, so the memory is made to believe in the damaged file."""
    monkeypatch.setattr(known_hashes, "SETTLED_SECONDS", -1.0)
    shard = artifact.manifest.head_shards[0]
    package = artifact.root / shard.path
    weights = next(package.rglob("weight.bin"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)

    def believed(path: Path) -> str:
        return shard.sha256 if path == package else package_sha256(path)

    with monkeypatch.context() as patch:
        patch.setattr(known_hashes, "package_sha256", believed)
        open_artifact(artifact.root, BackendOptions(threads=1), SILENT).verifier.close()
    open_artifact(artifact.root, BackendOptions(threads=1), SILENT).verifier.close()
    with pytest.raises(ArtifactError, match=r"head_00\.mlpackage: sha256 is"):
        open_artifact(artifact.root, BackendOptions(threads=1, verify=True), SILENT)
    with pytest.raises(ArtifactError, match=r"head_00\.mlpackage: sha256 is"):
        open_artifact(artifact.root, BackendOptions(threads=1), SILENT)


@pytest.mark.fast_only("False")
@pytest.mark.parametrize("known", [True, False])
def test_a_start_that_takes_minutes_is_announced(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Before it happens, if an earlier one was measured; else once it has been."""
    first = StartTimes(load_seconds=4, passes=(FirstPass(rows=1, seconds=112),))
    found = iter([Starts(first) if known else None, Starts(first)])
    monkeypatch.setattr(backends, "recorded_starts", lambda artifact, backend: next(found))
    notes: list[str] = []
    open_artifact(
        artifact.root, BackendOptions(threads=1), replace(SILENT, note=notes.append)
    ).verifier.close()
    (note,) = notes
    assert (
        note.startswith("starting on openvino takes 1 min 56 s: the first process took loading 4.0 s")
        == known
    )
    assert ("`anespec doctor " in note) != known


def test_a_verifier_whose_vocabulary_cannot_be_read_is_closed(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    opened = backends.open_verifier

    def watched(artifact: Artifact, backend: str, *more: Any) -> Verifier:
        verifier = opened(artifact, backend, *more)
        close = verifier.close

        def closing() -> None:
            closed.append(backend)
            close()

        monkeypatch.setattr(verifier, "close", closing)
        return verifier

    def refused(file: object) -> Tokenizer:
        raise GGUFError("no vocabulary")

    monkeypatch.setattr(backends, "open_verifier", watched)
    monkeypatch.setattr(Tokenizer, "from_gguf", refused)
    with pytest.raises(GGUFError, match="no vocabulary"):
        open_artifact(artifact.root, BackendOptions(backend="openvino", threads=1), SILENT)
    assert closed == ["openvino"]


def test_an_artifact_that_is_opened_again_has_the_same_limits(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[WorkerLimits | None] = []
    opened = backends.open_verifier

    def watched(
        artifact: Artifact, backend: str, threads: int | None, workers: WorkerLimits, *more: Any
    ) -> Verifier:
        asked.append(workers)
        return opened(artifact, backend, threads, workers, *more)

    def failing(*_: object) -> None:
        raise AnespecError("no process can be started")

    monkeypatch.setattr(backends, "open_verifier", watched)
    monkeypatch.setattr(repeat_process, "run_elsewhere", failing)
    options = BackendOptions(backend="openvino", threads=1, worker_budget=10**9)
    ask_while_closed(open_artifact(artifact.root, options, SILENT), options, SILENT).verifier.close()
    assert asked == [options.workers] * 2


@pytest.mark.slow
def test_what_was_measured_once_is_known_and_what_measuring_took_is_given_back(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(artifact.root / "gates", ignore_errors=True)
    opened = backends.open_verifier
    times: list[str] = []

    def watched(artifact: Artifact, backend: str, *more: Any) -> Verifier:
        times.append(backend)
        return opened(artifact, backend, *more)

    monkeypatch.setattr(backends, "open_verifier", watched)
    with anespec.load(artifact.root, threads=1) as model:
        first = model.generate("Once upon a time", max_tokens=8).text
    assert len(times) == 3, "once, after another process had its turn, and without the gate's memory"
    here = backends.circumstances(artifact, "openvino", 1)
    verdict = artifact.read_verdicts(CostFile).find(here)
    assert verdict is not None
    assert {each.width for each in verdict.widths} >= {artifact.manifest.block}
    assert all(each.seconds > 0 for each in verdict.widths)
    assert CostVerdict.of(verdict.costs, here).costs == verdict.costs, "what is kept is what was measured"
    changing = CostVerdict.of(PassCosts(verdict.costs.widths, change=0.25), here)
    assert changing.costs.change == 0.25

    def measured_again(*_: object) -> NoReturn:
        raise AssertionError("what passes cost is known")

    monkeypatch.setattr(costs, "measure_pass_costs", measured_again)
    with anespec.load(artifact.root, threads=1) as model:
        assert model.generate("Once upon a time", max_tokens=8).text == first
    assert len(times) == 4


@pytest.mark.slow
def test_what_use_taught_of_costs_is_written_back_when_a_model_is_closed(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each look at the engine's clock is a millisecond after the last one, however long a pass takes.
    clock = itertools.count(0.0, 0.001)
    monkeypatch.setattr("anespec.runtime.engine.engine.perf_counter", lambda: next(clock))
    here = backends.circumstances(artifact, "openvino", 1)
    with anespec.load(artifact.root, threads=1) as model:
        model.generate("Once", max_tokens=2)
    known = artifact.read_verdicts(CostFile).find(here)
    assert known is not None
    slow = PassCosts(tuple(replace(cost, seconds=100.0) for cost in known.costs.widths))
    artifact.record_verdict(CostFile, CostVerdict.of(slow, here))
    with anespec.load(artifact.root, threads=1) as model:
        model.generate("Once upon a time", max_tokens=80, ignore_eos=True)
    learned = artifact.read_verdicts(CostFile).find(here)
    assert learned is not None
    assert all(cost.seconds < 1.0 for cost in learned.costs.widths)
    assert not costs.keep_learned(artifact, here, learned.costs), "what is known is not written again"
    assert not costs.keep_learned(artifact, here, None)
