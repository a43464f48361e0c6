"""What starting takes: measured where a shard is met first and where it runs, kept, and told."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from converting import build
from light_core_ml import Array, LightCoreML, LightModel, meet_here
from standin_core_ml import NativeModel, stand_in
from tiny_model import TinyModel, write_gguf

from anespec.manifests.graph_choices import ReshapeHint
from anespec.manifests.store import Artifact
from anespec.runtime.backends.coreml import load_probe as contact_module
from anespec.runtime.backends.coreml.backend import CoreMLBackend
from anespec.runtime.backends.coreml.library import ComputeUnits, CoreMLTools, LoadedModel, ModelState
from anespec.runtime.backends.coreml.start_times import FirstPass, Starts, StartTimes, added_up


class Clock:
    """Seconds that pass when somebody says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class PreparingModel:
    """Specialises for every width: minutes at its first pass in a process, unless that is kept for others."""

    def __init__(self, model: LightModel, prepared: set[tuple[str, int]], clock: Clock) -> None:
        self._model, self._prepared, self._clock = model, prepared, clock

    def make_state(self) -> ModelState:
        return self._model.make_state()

    def predict(self, data: dict[str, Array], state: ModelState | None = None) -> dict[str, Array]:
        rows = data["x"].shape[2]
        if (self._model.name, rows) not in self._prepared:
            self._prepared.add((self._model.name, rows))
            self._clock.now += {1: 112, 4: 133}[rows]
        return self._model.predict(data, state)


class PreparingCoreML(LightCoreML):
    """A process of it keeps what it prepared, and leaves it to the next one where `shares` says so."""

    def __init__(self, clock: Clock, shares: bool) -> None:
        super().__init__()
        self.clock, self.shares = clock, shares
        self.kept: set[tuple[str, int]] = set()

    def load(
        self,
        compiled: Path,
        function: str | None,
        units: ComputeUnits,
        hint: ReshapeHint = ReshapeHint.NONE,
    ) -> LoadedModel:
        self.clock.now += 1
        model = super().load(compiled, function, units, hint)
        assert isinstance(model, LightModel)
        return PreparingModel(model, self.kept if self.shares else set(), self.clock)


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    source = write_gguf(tmp_path / "tiny.gguf", TinyModel(layers=2))
    return Artifact(build(source, tmp_path / "m.anespec", context=64).path)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(contact_module, "time", clock)
    return clock


@pytest.mark.parametrize("shares", [False, True])
def test_a_start_is_measured_in_the_first_process_and_in_the_one_that_runs(
    artifact: Artifact,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    shares: bool,
) -> None:
    library = PreparingCoreML(clock, shares)
    meet_here(monkeypatch, library)
    backend = CoreMLBackend("coreml", ComputeUnits.CPU_AND_NE, library)
    assert backend.starts(artifact) is None
    with caplog.at_level("INFO"):
        backend.open(artifact, 1).close()
    starts, shards = backend.starts(artifact), len(artifact.manifest.shards)
    assert starts is not None
    passes = tuple(FirstPass(rows=rows, seconds=shards * each) for rows, each in ((1, 112), (4, 133)))
    assert starts.first == StartTimes(load_seconds=shards, passes=passes)
    assert starts.last is not None
    assert starts.last.seconds == shards * (1 if shares else 246)
    assert starts.is_long is not shares
    said = "reused the first one's work" if shares else "took as long as the first one"
    assert sum(said in line for line in caplog.messages) == shards


@pytest.mark.slow
def test_the_hint_of_the_manifest_is_what_core_ml_hears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch)
    meet_here(monkeypatch, CoreMLTools())
    source = write_gguf(tmp_path / "tiny.gguf", TinyModel(layers=2))
    told: dict[str, list[Mapping[str, Any]]] = {}
    for hint in ReshapeHint:
        path = build(source, tmp_path / f"{hint}.anespec", context=64, reshape_hint=hint).path
        monkeypatch.setattr(NativeModel, "hints", [])
        CoreMLBackend("coreml", ComputeUnits.CPU_AND_NE).open(Artifact(path), 1).close()
        told[hint] = NativeModel.hints
        assert len(told[hint]) == 2 * len(Artifact(path).manifest.shards)
    assert all(hints == {} for hints in told["none"])
    assert all(hints == {"reshapeFrequency": "Frequent"} for hints in told["frequent"])
    assert all(hints == {"reshapeFrequency": "Infrequent"} for hints in told["infrequent"])


def test_starts_are_told_in_words() -> None:
    one = StartTimes(load_seconds=1, passes=(FirstPass(rows=4, seconds=133), FirstPass(rows=1, seconds=112)))
    both = added_up([one, one])
    assert both is not None
    assert [each.rows for each in both.passes] == [1, 4]
    assert both.seconds == 492
    assert added_up([]) is None
    told = str(Starts(one, StartTimes(load_seconds=2.0)))
    assert told.startswith("the first process took loading 1.0 s, first passes 2 min 13 s (4 rows) and 1 min")
    assert told.endswith("; the latest one loading 2.0 s")
