"""Probes that are really converted, run, timed and judged, each in a process of its own."""

import resource
from pathlib import Path

import pytest
from gguf import GGUFReader
from slow import slow_but
from tiny_model import TinyModel, write_gguf
from trials import trial_here

from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import AttentionShape, KVForm, Shapes, Target
from anespec.system.errors import StorageError
from anespec.validate.tuning import artifact_bench, truncated_gguf
from anespec.validate.tuning.artifact_bench import ArtifactBench, Machine
from anespec.validate.tuning.candidates import Candidate
from anespec.validate.tuning.options import TuneOptions
from anespec.validate.tuning.trial_process import TrialRequest, options_of
from anespec.validate.tuning.truncated_gguf import write_first_layers
from anespec.validate.tuning.workbench import Measured, Probe

CANDIDATE = Candidate(
    weights="int8-channel",
    kv_form=KVForm.REREAD,
    attention=AttentionShape.GROUPED,
    shapes=Shapes.FUNCTIONS,
    block=4,
    prefill_block=16,
    shard_bytes=1_000_000,
    head_shards=2,
)
FAMILIES = Path(__file__).resolve().parents[3] / "tests" / "data" / "families"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return write_gguf(path, TinyModel(layers=3, vocabulary=96, context=128))


def bench(model: Path, work: Path, target: Target = Target.CPU, **machine: object) -> ArtifactBench:
    settings = {"backend": "torch", "threads": 1, "heed_rules": True} | machine
    source = SourceModel(GGUFFile(model))
    return ArtifactBench(source, target, 64, work, Machine(**settings))  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_probe_runs_and_passes_its_gates(model: Path, tmp_path: Path) -> None:
    found = bench(model, tmp_path).measure(Probe(candidate=CANDIDATE, layers=2))
    assert found.usable, found.why_not
    assert [time.rows for time in found.times] == [4, 16]
    assert all(time.layers > 0 and time.head > 0 for time in found.times)
    assert found.load_seconds > 0
    # Nothing is left but the layers that it was made of, which the next probe takes again.
    assert [path.name for path in tmp_path.iterdir()] == ["first-2.gguf"]


@pytest.mark.slow
def test_what_the_rules_fail_is_not_run_and_is_without_them(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact_bench, "child_answer", trial_here)
    probe = Probe(
        candidate=CANDIDATE.model_copy(update={"shapes": Shapes.STATIC, "prefill_block": None}), layers=1
    )
    refused = bench(model, tmp_path, Target.MAC).measure(probe)
    assert refused.objections
    assert not refused.times
    assert bench(model, tmp_path, Target.MAC, heed_rules=False).measure(probe).usable


@pytest.mark.slow
def test_a_candidate_that_cannot_be_converted_says_why(model: Path, tmp_path: Path) -> None:
    probe = Probe(candidate=CANDIDATE.model_copy(update={"head_shards": 1000}), layers=1)
    found = bench(model, tmp_path).measure(probe)
    assert found.refusal is not None
    assert "--head-shards" in found.refusal


def test_a_process_that_hangs_is_ended(model: Path, tmp_path: Path) -> None:
    found = bench(model, tmp_path, most_seconds=0.05).measure(Probe(candidate=CANDIDATE, layers=1))
    assert found.refusal is not None
    assert "no answer within" in found.refusal


def test_a_process_that_is_killed_is_told_of(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = tmp_path / "plant"
    plant.mkdir()
    (plant / "sitecustomize.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    monkeypatch.syspath_prepend(str(plant))
    found = bench(model, tmp_path).measure(Probe(candidate=CANDIDATE, layers=1))
    assert found.refusal is not None
    assert "Killed: 9" in found.refusal


def test_the_limits_of_workers_reach_a_trial(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answered(module: str, arguments: tuple[str], seconds: float) -> bytes:
        asked.append(arguments[0])
        return Measured(probe=TrialRequest.model_validate_json(arguments[0]).probe).model_dump_json().encode()

    monkeypatch.setattr(artifact_bench, "child_answer", answered)
    limits = TuneOptions(worker_budget="2GB", worker_timeout=30).workers
    bench(model, tmp_path, workers=limits).measure(Probe(candidate=CANDIDATE, layers=1))
    assert limits.budget == 2_000_000_000
    assert TrialRequest.model_validate_json(asked[0]).workers == limits


def test_an_answer_that_is_none_is_told_of(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact_bench, "child_answer", lambda *_: b"a library says")
    found = bench(model, tmp_path).measure(Probe(candidate=CANDIDATE, layers=1))
    assert found.refusal == "its process gave no readable answer"


def test_the_topology_is_what_convert_would_build(model: Path, tmp_path: Path) -> None:
    with GGUFFile(model) as file:
        planned = ConversionPlan(SourceModel(file), options_of(CANDIDATE, Target.CPU, 64))
        assert bench(model, tmp_path).topology(CANDIDATE) == planned.topology.layers


def test_the_first_layers_are_the_models_own_bit_for_bit(model: Path, tmp_path: Path) -> None:
    whole = {tensor.name: tensor for tensor in GGUFReader(model).tensors}
    part = GGUFReader(write_first_layers(model, 2, tmp_path / "part.gguf"))
    kept = [name for name in whole if not name.startswith("blk.2.")]
    assert sorted(tensor.name for tensor in part.tensors) == sorted(kept)
    for tensor in part.tensors:
        assert tensor.data.tobytes() == whole[tensor.name].data.tobytes()
    with GGUFFile(tmp_path / "part.gguf") as file:
        assert len(SourceModel(file).facts.layers) == 2


@pytest.mark.parametrize(
    "name", slow_but(sorted(path.stem for path in FAMILIES.glob("*.gguf")), "llama", "gemma4-ple", "phi3")
)
def test_every_family_has_first_layers_or_is_taken_whole(name: str, tmp_path: Path) -> None:
    whole = FAMILIES / f"{name}.gguf"
    path, layers = bench(whole, tmp_path)._first_layers(1)
    with GGUFFile(path) as file:
        assert len(SourceModel(file).facts.layers) == layers
    assert path.stat().st_size <= whole.stat().st_size


def test_a_full_disk_ends_the_search_and_not_the_candidate(model: Path, tmp_path: Path) -> None:
    """Kept in the journal, it would say for ever that this candidate does not run."""
    tried, probe = bench(model, tmp_path), Probe(candidate=CANDIDATE, layers=1)
    tried._first_layers(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(StorageError, match="--work"):
            tried.measure(probe)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["first-1.gguf"]


def test_first_layers_that_the_disk_has_no_room_for_are_one_sentence(model: Path, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(StorageError, match="make room") as caught:
            write_first_layers(model, 2, tmp_path / "part.gguf")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "None" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_whole_model_is_timed_in_its_own_shards(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact_bench, "child_answer", trial_here)
    candidate = CANDIDATE.model_copy(update={"shapes": Shapes.STATIC, "prefill_block": None})
    tried, probe = bench(model, tmp_path), Probe(candidate=candidate, layers=3, whole=True)
    found = tried.measure(probe)
    assert found.usable, found.why_not
    assert (found.probe, [time.rows for time in found.times]) == (probe, [4])
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(artifact_bench, "DISK_FACTOR", 1e12)
    with pytest.raises(StorageError, match="a whole artifact takes up to"):
        tried.measure(probe)


def test_the_model_is_read_once(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = bench(model, tmp_path)
    monkeypatch.setattr(truncated_gguf, "GGUFFile", None)
    assert [tried.topology(CANDIDATE), tried.topology(CANDIDATE)] == [(3,)] * 2
