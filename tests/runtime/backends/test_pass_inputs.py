"""What shards are given, against formulas written here."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from converting import build
from examples import examples
from gguf.constants import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import TinyModel, write_gguf

from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import Manifest
from anespec.manifests.store import Artifact
from anespec.runtime.backends.embedding import Embedding
from anespec.runtime.backends.pass_inputs import PassInputs
from anespec.runtime.passes import Row, RowKind, RowSlots
from anespec.system.errors import ArtifactError

TINY = TinyModel()
SLOTS = 128
START = np.zeros(1, np.int64)
"""The positions of tokens of a model whose positions have no embeddings."""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("inputs")
    factors = {"rope_freqs.weight": np.array([1, 2, 3, 4], np.float32)}
    source = write_gguf(folder / "tiny.gguf", TINY, tensors=factors, kind=GGMLQuantizationType.Q8_0)
    return Artifact(build(source, folder / "m.anespec", sequences=2).path)


@pytest.fixture(scope="module")
def manifest(artifact: Artifact) -> Manifest:
    return artifact.manifest


@pytest.fixture(scope="module")
def embedding(artifact: Artifact) -> Iterator[Embedding]:
    embedding = Embedding(artifact.tokens_path(), artifact.manifest.tokens)
    yield embedding
    embedding.close()


def row(position: int, slot: int | None, *visible: range) -> Row:
    return Row(RowKind.PROMPT, 0, position, (RowSlots(slot, visible),))


def hidden(count: int) -> np.ndarray:
    return np.zeros((1, TINY.d, count, 1), np.float16)


@st.composite
def blocks(draw: st.DrawFn) -> list[Row]:
    count = draw(st.integers(1, 6))
    slots = draw(st.permutations(range(SLOTS)))[:count]
    rows = []
    for slot in slots:
        starts = draw(st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=3))
        spans = [range(start, draw(st.integers(start + 1, SLOTS))) for start in starts]
        rows.append(row(draw(st.integers(0, 63)), draw(st.sampled_from([slot, None])), *spans))
    return rows


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(60))
@given(block=blocks())
def test_masks_and_rope_rows(manifest: Manifest, block: list[Row]) -> None:
    x = hidden(len(block))
    given = PassInputs(manifest).of(block, x)
    assert set(given) == {"x", "rope_cos", "rope_sin", "attn_mask", "kv_write_mask"}
    assert given["x"] is x
    assert all(values.dtype == np.float16 for values in given.values())
    assert given["attn_mask"].shape == (1, 1, len(block), SLOTS)
    assert given["kv_write_mask"].shape == (1, 1, SLOTS, len(block))
    for lane, this in enumerate(block):
        place = this.slots[0]
        for slot in range(SLOTS):
            seen = any(slot in span for span in place.visible)
            assert given["attn_mask"][0, 0, lane, slot] == (0 if seen else -(2**15))
            assert given["kv_write_mask"][0, 0, slot, lane] == (1 if slot == place.home else 0)
        for pair in range(4):
            angle = this.position / 10000 ** (2 * pair / 8) / (pair + 1)
            assert given["rope_cos"][lane, pair] == np.float16(np.cos(angle))
            assert given["rope_sin"][lane, pair] == np.float16(np.sin(angle))


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(60))
@given(steps=st.lists(blocks(), min_size=2, max_size=6))
def test_masks_that_are_kept_are_those_made_anew(manifest: Manifest, steps: list[list[Row]]) -> None:
    kept = PassInputs(manifest)
    places: dict[int, dict[str, np.ndarray]] = {}
    for width in range(1, 7):
        fresh = PassInputs(manifest).of([row(0, 0, range(1))] * width, hidden(width))
        places[width] = {name: np.zeros_like(values) for name, values in fresh.items()}
    placed = PassInputs(manifest, places=places)
    for block in steps:
        x = np.full_like(hidden(len(block)), len(block))
        expected = PassInputs(manifest).of(block, x)
        for name, values in kept.of(block, x).items():
            assert (values == expected[name]).all()
        for name, values in placed.of(block, x).items():
            assert values is places[len(block)][name]
            assert (values == expected[name]).all()


class Counted(np.ndarray):
    """An array that counts the elements that are written to it."""

    written = 0

    def __setitem__(self, key: object, value: object) -> None:
        Counted.written += np.asarray(self)[key].size  # type: ignore[index]
        super().__setitem__(key, value)


def test_a_pass_writes_few_elements_of_masks_that_are_kept(manifest: Manifest) -> None:
    """Decoding: each pass's rows stand right behind those of the last."""
    names = ("attn_mask", "kv_write_mask")
    place = {
        name: np.zeros(shape, np.float16).view(Counted)
        for name, shape in zip(names, ((1, 1, 4, SLOTS), (1, 1, SLOTS, 4)), strict=True)
    }
    inputs = PassInputs(manifest, places={4: place})
    for start in range(0, 60, 3):
        block = [row(start + i, start + i, range(start + i + 1)) for i in range(4)]
        Counted.written = 0
        found = inputs.of(block, hidden(4))
        # Three slots more for each row, and for each column a slot that goes and one that comes.
        assert Counted.written == 4 * 3 + 4 * 2 or not start
        expected = PassInputs(manifest).of(block, hidden(4))
        assert all((found[name] == expected[name]).all() for name in names)


def test_a_masked_slot_weighs_nothing_in_fp16(manifest: Manifest) -> None:
    mask = PassInputs(manifest).of([row(0, 0, range(1))], hidden(1))["attn_mask"]
    assert np.exp(mask.astype(np.float32))[0, 0, 0, 1:].astype(np.float16).max() == 0


@pytest.mark.parametrize("position", [-1, 64])
def test_positions_outside_the_context_are_refused(manifest: Manifest, position: int) -> None:
    with pytest.raises(ArtifactError, match=rf"positions \[{position}\] are outside the context of 64"):
        PassInputs(manifest).of([row(position, 0, range(1))], hidden(1))


@pytest.mark.parametrize(
    ("slot", "visible"), [(-1, range(1)), (SLOTS, range(1)), (0, range(-2, 1)), (0, range(SLOTS + 1))]
)
def test_slots_outside_the_pool_are_refused(manifest: Manifest, slot: int, visible: range) -> None:
    with pytest.raises(ArtifactError, match=rf"are outside the {SLOTS} slots of the pool 'global'"):
        PassInputs(manifest).of([row(0, slot, visible)], hidden(1))


def test_embedding_rows_are_the_dequantised_rows_of_the_source(
    artifact: Artifact, embedding: Embedding
) -> None:
    tokens = np.array([3, 0, 39, 3])
    with GGUFFile(artifact.tokens_path()) as file:
        rows = file.rows("token_embd.weight")[tokens].astype(np.float16)
    found = embedding.hidden(tokens, START)
    assert found.shape == (1, TINY.d, 4, 1)
    assert (rows == found[0, :, :, 0].T).all()
    np.testing.assert_allclose(rows, TINY.tensors()["token_embd.weight"][tokens], atol=0.01)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6])
def test_an_embedding_that_is_not_finite_is_named(tmp_path: Path, value: float) -> None:
    """With a head of its own the converter never reads the whole embedding table."""
    table = TINY.tensors()["token_embd.weight"]
    table[7, 3] = value
    source = write_gguf(tmp_path / "tiny.gguf", TINY, tensors={"token_embd.weight": table})
    artifact = Artifact(build(source, tmp_path / "m.anespec").path)
    embedding = Embedding(artifact.tokens_path(), artifact.manifest.tokens)
    assert np.isfinite(embedding.hidden(np.array([6, 8]), START)).all()
    with pytest.raises(
        ArtifactError, match=r"tokens\.gguf: the embedding of a token in \[6, 7\] is not finite"
    ):
        embedding.hidden(np.array([6, 7]), START)


def test_a_table_that_was_cut_short_is_an_error_and_not_the_processes_end(
    artifact: Artifact, tmp_path: Path
) -> None:
    path = tmp_path / "tokens.gguf"
    shutil.copy(artifact.tokens_path(), path)
    embedding = Embedding(path, artifact.manifest.tokens)
    expected = embedding.hidden(np.array([0]), START)
    # What is gone from its place is there for whoever has it open.
    path.rename(tmp_path / "elsewhere")
    assert (embedding.hidden(np.array([0]), START) == expected).all()
    os.truncate(tmp_path / "elsewhere", 100)
    with pytest.raises(ArtifactError, match="was cut short while it was in use"):
        embedding.hidden(np.array([0]), START)
    embedding.close()
