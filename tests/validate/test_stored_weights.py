"""Weights as an artifact stores them: any rows of them, and each read once, whatever is judged by it."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from converting import build
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planted import EMBEDDED, FORMATS, needs_stories
from slow import slow_but

from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import Manifest, WeightFormat
from anespec.manifests.store import Artifact
from anespec.runtime.backends.portable.program import load_program
from anespec.system.errors import ArtifactError
from anespec.validate.gates import golden_gate
from anespec.validate.golden import stored_weights
from anespec.validate.golden.gate import compare_computed
from anespec.validate.golden.reference import Reference
from anespec.validate.golden.steps import golden_weights
from anespec.validate.golden.stored_weights import StoredWeights, stored_weight
from anespec.validate.sample.prompts import prompt_ids

FAMILIES = Path(__file__).resolve().parents[1] / "data" / "families"
FUSED = FAMILIES / "phi3.gguf"
"""Queries, keys and values are rows of one tensor there, so it is asked for in parts."""


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact(build(FUSED, tmp_path_factory.mktemp("fused") / "m.anespec", context=128).path)


@pytest.mark.fast_only("int8-channel")
@needs_stories
@pytest.mark.parametrize("weights", slow_but(FORMATS, WeightFormat.INT8_CHANNEL, WeightFormat.LUT4))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_some_rows_are_those_of_the_whole(
    stories: dict[WeightFormat, Artifact], weights: WeightFormat, data: st.DataObject
) -> None:
    artifact = stories[weights]
    shard = artifact.manifest.layer_shards[0]
    tensor = data.draw(st.sampled_from(shard.tensors))
    program = load_program(artifact.shard_path(shard))
    whole = stored_weight(program, tensor.projection).rows(np.arange(tensor.rows))
    some = np.array(data.draw(st.lists(st.integers(0, tensor.rows - 1), min_size=1, max_size=9)))
    assert (stored_weight(program, tensor.projection).rows(some) == whole[some]).all()
    with pytest.raises(IndexError):
        stored_weight(program, tensor.projection).rows(np.array([tensor.rows]))


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_figures_do_not_depend_on_what_was_asked_before(
    fused: Artifact, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    monkeypatch.setattr(stored_weights, "NUMBERS_AT_ONCE", 1000)
    with GGUFFile(FUSED) as file:
        plain, asked = StoredWeights(fused, file), StoredWeights(fused, file, threads=2)
        for tensor in data.draw(st.lists(st.sampled_from(fused.manifest.tensors), min_size=1, max_size=4)):
            rows = file.info(tensor.tensor).shape[0]
            first = data.draw(st.integers(0, rows - 1))
            some = slice(first, data.draw(st.integers(first + 1, rows)))
            found, whole = asked.rows(tensor.tensor, some), plain.rows(tensor.tensor)
            assert (found == whole[some]).all()
        for one, other in zip(plain.figures(), asked.figures(), strict=True):
            assert one.tensor == other.tensor
            assert one.error == pytest.approx(other.error, rel=1e-4)
            assert one.error == pytest.approx(one.claimed, rel=1e-3, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("gguf", [FUSED, FAMILIES / "gemma4-ple.gguf"], ids=lambda p: p.stem)
def test_each_weight_is_dequantised_once(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the whole gate: of the artifact's rows and of the GGUF's, tied embeddings apart."""
    artifact = Artifact(build(gguf, tmp_path / "m.anespec", context=128).path)
    stored: Counter[tuple[str, str]] = Counter()
    read: Counter[str] = Counter()
    weight, rows = stored_weights.stored_weight, GGUFFile.rows

    class Counted:
        def __init__(self, source: str, projection: str, inner: stored_weights.StoredWeight) -> None:
            self.name, self.inner = (Path(source).name, projection), inner

        def rows(self, rows: np.ndarray) -> np.ndarray:
            stored[self.name] += len(rows)
            return self.inner.rows(rows)

    def counted_rows(self: GGUFFile, name: str, some: slice | np.ndarray | None = None) -> np.ndarray:
        values = rows(self, name, some)
        if self.path == gguf and len(self.info(name).shape) > 1 and isinstance(some, np.ndarray):
            read[name] += len(values)
        return values

    monkeypatch.setattr(
        stored_weights, "stored_weight", lambda p, name: Counted(p.source, name, weight(p, name))
    )
    monkeypatch.setattr(GGUFFile, "rows", counted_rows)
    notes: list[str] = []
    shares: list[float] = []

    def take(note: str, share: float | None = None, /) -> None:
        notes.append(note)
        shares.append(share or 0.0)

    verdict = golden_gate(artifact, gguf, "torch", 1, take)
    monkeypatch.undo()
    assert verdict.passed
    shards = artifact.manifest.shards
    assert stored == {(Path(s.path).name, t.projection): t.rows for s in shards for t in s.tensors}
    with GGUFFile(gguf) as file:
        once = {name for name in {t.tensor for t in artifact.manifest.tensors} if "embd" not in name}
        assert {name: read[name] for name in once} == {name: file.info(name).shape[0] for name in once}
    for stage in ("opening", "prompt", "reference", "shard"):
        assert any(note.startswith(stage) for note in notes), stage
    assert len(notes) == len(golden_weights(artifact.manifest, prompt_ids(artifact))), (
        "a weight for each note"
    )
    assert shares == sorted(shares)
    assert (shares[0], round(shares[-1], 6)) == (0, 1)


def gapped(manifest: Manifest) -> Iterator[Manifest]:
    """The manifest with a part of the model left out, or twice."""
    layers, heads = manifest.layer_shards, manifest.head_shards
    shorter = layers[-1].model_copy(update={"end_layer": layers[-1].end_layer - 1})
    yield manifest.model_copy(update={"layer_shards": (*layers[:-1], shorter)})
    yield manifest.model_copy(update={"layer_shards": (*layers, layers[-1])})
    yield manifest.model_copy(update={"head_shards": heads[1:]})
    yield manifest.model_copy(update={"head_shards": heads[::-1]})


def test_shards_that_leave_out_a_part_are_refused(embedded: Artifact) -> None:
    with GGUFFile(EMBEDDED) as file:
        reference = Reference(file, embedded.manifest.context)
        for manifest in gapped(embedded.manifest):
            with pytest.raises(ArtifactError, match="do not make up the whole model"):
                compare_computed(manifest, reference, None, None, None)  # type: ignore[arg-type]
