"""The quality gate on trained models: independent answers, order of formats, damage."""

import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from planted import EMBEDDED, STORIES, TORCH, convert_to, needs_stories
from slow import slow_but

from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import WeightFormat
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import ExactnessFile, ExactnessVerdict, Invariance, InvarianceVerdict
from anespec.runtime.backends import circumstances, open_verifier
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.errors import RequestError, StorageError
from anespec.validate.golden.reference import Reference
from anespec.validate.quality.divergence import diverge, log_softmax
from anespec.validate.quality.gate import (
    LARGEST_TEXT,
    ROWS_AT_ONCE,
    SampleText,
    Window,
    compare_on_text,
    cut_windows,
    quality_gate,
)
from anespec.validate.quality.verdict import QualityFile, QualityTask, QualityVerdict

TEXT = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, "
    "she saw a big red ball under a tree. She wanted to play with the ball, but it was too high for her to "
    'reach. Lily asked her mom to help her. Her mom smiled and said, "Let\'s get it together." They used a '
    "long stick and the ball fell down. Lily was very happy. She played with it all day with her friend Tom."
)
CONTEXT = 128
"""That of the artifacts in this folder, so that the text is read in two windows."""


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    path.write_text(TEXT)
    return path


def quality_of(
    artifact: Artifact, gguf: Path, text: Path, backend: str = TORCH, tokens: int = 512
) -> QualityVerdict:
    return scored(artifact, gguf, QualityTask(text, tokens), backend)


def scored(artifact: Artifact, gguf: Path, task: QualityTask, backend: str = TORCH) -> QualityVerdict:
    return quality_gate(artifact, gguf, task, SampleText.read(task.text), backend, 1, lambda *_: None)


@given(st.integers(0, 40), st.integers(1, 12), st.integers(1, 50), st.sampled_from([None, 99]))
def test_windows_cover_the_text_in_order(length: int, context: int, limit: int, bos: int | None) -> None:
    ids = list(range(length))
    windows = cut_windows(ids, bos, context, limit)
    assert all(2 <= len(window.ids) <= context for window in windows)
    scored = [token for window in windows for token in window.targets]
    assert scored == sorted(set(scored))
    assert len(scored) <= limit
    if bos is not None:
        assert all(window.ids[0] == bos for window in windows)
        if context > 1:
            assert scored == ids[:limit]
    elif context > 1:
        read = [token for window in windows for token in window.ids]
        assert read == ids[: len(read)]
        assert len(scored) == limit or len(ids) - len(read) <= 1


def test_a_window_predicts_every_token_but_its_first() -> None:
    window = Window((7, 8, 9))
    assert list(zip(window.inputs, window.targets, strict=True)) == list(pairwise(window.ids))


@pytest.mark.slow
@needs_stories
def test_perplexity_and_divergence_are_those_of_single_passes(
    stories: Mapping[WeightFormat, Artifact], text: Path
) -> None:
    """Every row by itself from the verifier and the reference, and numpy's own sums over them."""
    artifact = stories[WeightFormat.INT8_CHANNEL]
    verdict = quality_of(artifact, STORIES, text, tokens=60)
    verifier = open_verifier(artifact, TORCH, 1)
    with GGUFFile(STORIES) as file:
        tokenizer = Tokenizer.from_gguf(file)
        ids = tokenizer.encode(TEXT)[:61]
        reference = Reference(file, CONTEXT, resident_layers=8)
        hidden = reference.layers(0, 5, reference.embed(ids[:-1]), range(60), reference.caches(), ids[:-1])
        expected = torch.log_softmax(torch.from_numpy(reference.logits(hidden)).double(), dim=-1).numpy()
    from anespec.runtime.kv.slot_mapping import SlotMapping
    from anespec.runtime.passes import RowKind, run_rows
    from anespec.runtime.rows import chain_rows, pad_rows

    region_map, rows = SlotMapping.of(verifier.shape), []
    for position, token in enumerate(ids[:-1]):
        row = chain_rows(region_map, 0, position, RowKind.CARRY, [token])
        logits = run_rows(verifier, (*row, *pad_rows(row, verifier.shape.block)))[0]
        rows.append(torch.log_softmax(torch.from_numpy(logits).double(), dim=-1).numpy())
    verifier.close()
    found = np.stack(rows)
    kl = (np.exp(expected) * (expected - found)).sum(axis=1)
    figures = verdict.figures
    assert figures.kl.mean == pytest.approx(kl.mean(), rel=1e-3)
    assert figures.kl.largest == pytest.approx(kl.max(), rel=1e-3)
    lanes = np.arange(60), ids[1:]
    assert figures.reference_perplexity == pytest.approx(np.exp(-expected[lanes].mean()), rel=1e-5)
    assert figures.artifact_perplexity == pytest.approx(np.exp(-found[lanes].mean()), rel=1e-6)


@needs_stories
def test_the_references_perplexity_is_llama_cpps(text: Path) -> None:
    llama_cpp = pytest.importorskip(
        "llama_cpp", reason="needs llama-cpp-python (pip install llama-cpp-python)"
    )
    gguf = STORIES.with_name("stories260K.F32.gguf")
    full = llama_cpp.GGML_TYPE_F32
    model = llama_cpp.Llama(
        str(gguf), n_ctx=CONTEXT, logits_all=True, n_threads=1, verbose=False, type_k=full, type_v=full
    )
    with GGUFFile(gguf) as file:
        tokenizer, reference = Tokenizer.from_gguf(file), Reference(file, CONTEXT)
        windows = cut_windows(tokenizer.encode(TEXT, add_special=False), tokenizer.bos_id, CONTEXT, limit=512)
        assert len(windows) > 1
        for window, hidden in zip(
            windows, reference.hidden_states([window.inputs for window in windows]), strict=True
        ):
            model.reset()
            model.eval(list(window.inputs))
            theirs = np.array(model.scores[: len(window.inputs)])
            ours = reference.logits(hidden)
            targets = np.array(window.targets)
            compared = diverge(ours, theirs, targets)
            assert compared.reference_nll.mean() == pytest.approx(compared.artifact_nll.mean(), rel=1e-5)
            assert compared.kl.max() < 1e-7
            lanes = np.arange(len(targets)), targets
            assert np.exp(-log_softmax(theirs)[lanes].mean()) < 12, "the text is like what the model knows"
    model.close()


@pytest.mark.slow
@needs_stories
@pytest.mark.parametrize("backend", slow_but(["torch", "openvino"], "openvino"))
def test_fp16_stays_closer_than_int8(
    stories: Mapping[WeightFormat, Artifact], text: Path, backend: str
) -> None:
    fp16 = quality_of(stories[WeightFormat.FP16], STORIES, text, backend).figures
    int8 = quality_of(stories[WeightFormat.INT8_CHANNEL], STORIES, text, backend).figures
    assert fp16.kl.mean < 3e-5
    assert 10 * fp16.kl.mean < int8.kl.mean < 3e-3
    assert fp16.top1_agreement >= int8.top1_agreement > 0.95
    assert abs(fp16.perplexity_change) < 0.2
    assert fp16.reference_nll == int8.reference_nll


@pytest.mark.slow
@needs_stories
def test_coarser_weights_diverge_further(stories: Mapping[WeightFormat, Artifact], text: Path) -> None:
    ladder = (WeightFormat.FP16, WeightFormat.INT8_CHANNEL, WeightFormat.LUT6, WeightFormat.INT4_BLOCK32)
    ladder += (WeightFormat.LUT4,)
    divergences = [quality_of(stories[weights], STORIES, text).figures.kl.mean for weights in ladder]
    assert all(3 * finer < coarser or coarser > 0.05 for finer, coarser in pairwise(divergences))
    assert divergences == sorted(divergences)


@pytest.mark.slow
@needs_stories
def test_damaged_weights_are_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stories: Mapping[WeightFormat, Artifact], text: Path
) -> None:
    """The artifact is made of a file whose first MLP is half as loud again, and scored by the real one."""
    task = QualityTask(text, 512, max_kl=0.003, max_perplexity_change=1.0)
    healthy = scored(stories[WeightFormat.INT8_CHANNEL], STORIES, task)
    assert healthy.passed
    plain = GGUFFile.rows

    def louder(self, name, rows=None):  # type: ignore[no-untyped-def]
        return plain(self, name, rows) * (1.5 if name == "blk.0.ffn_down.weight" else 1)

    with monkeypatch.context() as patch:
        patch.setattr(GGUFFile, "rows", louder)
        damaged = convert_to(tmp_path, STORIES, WeightFormat.INT8_CHANNEL)
    red = scored(damaged, STORIES, task)
    assert len(red.failures) == 2
    assert red.figures.kl.mean > 10 * healthy.figures.kl.mean


@pytest.mark.slow
def test_wide_passes_give_the_same_figures_where_width_is_proven(embedded_cpu: Artifact, text: Path) -> None:
    narrow = quality_of(embedded_cpu, EMBEDDED, text, "openvino", tokens=150)
    here = circumstances(embedded_cpu, "openvino", 1)
    proven = [InvarianceVerdict(invariance=i, cases=1, unequal=0, largest_difference=0) for i in Invariance]
    embedded_cpu.record_verdict(
        ExactnessFile, ExactnessVerdict(circumstances=here, form="quick", invariances=tuple(proven))
    )
    wide = quality_of(embedded_cpu, EMBEDDED, text, "openvino", tokens=150)
    assert wide.figures == narrow.figures
    assert embedded_cpu.read_verdicts(QualityFile).verdicts == (wide,)


class Watched:
    """A verifier that keeps how many rows each pass had."""

    def __init__(self, inner, widths):  # type: ignore[no-untyped-def]
        self.inner, self.widths, self.shape = inner, widths, inner.shape

    def submit(self, plan):  # type: ignore[no-untyped-def]
        self.widths.append(plan.width)
        self.inner.submit(plan)

    def wait(self):  # type: ignore[no-untyped-def]
        return self.inner.wait()


@pytest.mark.slow
def test_no_more_logits_are_held_than_promised(
    embedded_cpu: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    plain = Reference.logits

    def watched(self, hidden, *slices):  # type: ignore[no-untyped-def]
        held.append(len(hidden))
        return plain(self, hidden, *slices)

    monkeypatch.setattr(Reference, "logits", watched)
    widths: list[int] = []
    verifier = open_verifier(embedded_cpu, TORCH, 1)
    windows = [Window(tuple(range(3, 243))), Window(tuple(range(3, 9)))]
    with GGUFFile(EMBEDDED) as file:
        reference = Reference(file, 256, resident_layers=8)
        tokens = compare_on_text(Watched(verifier, widths), reference, windows)
        assert set(widths) == {verifier.shape.block}
        widths.clear()
        compare_on_text(Watched(verifier, widths), reference, windows, widths=verifier.shape.wide_widths)
        assert max(widths) == verifier.shape.t_max == 128
    verifier.close()
    assert len(tokens.kl) == 239 + 5
    assert max(held) <= ROWS_AT_ONCE


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", RequestError, "is empty"),
        (b"\xff\xfe\x00", RequestError, "not UTF-8"),
        (None, StorageError, "cannot be read"),
    ],
)
def test_texts_that_cannot_be_scored(
    tmp_path: Path, content: bytes | None, error: type[Exception], message: str
) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=message):
        SampleText.read(path)


def test_what_is_no_file_or_far_too_large_is_not_scored(tmp_path: Path) -> None:
    path = tmp_path / "text"
    os.mkfifo(path)
    with pytest.raises(StorageError, match="is a pipe or a device"):
        SampleText.read(path)
    path.unlink()
    path.touch()
    os.truncate(path, LARGEST_TEXT + 1)
    with pytest.raises(StorageError, match="is larger than"):
        SampleText.read(path)
    with pytest.raises(StorageError, match="cannot be read"):
        SampleText.read(tmp_path)


def test_a_huge_text_is_not_read_to_its_end() -> None:
    with GGUFFile(EMBEDDED) as file:
        tokenizer = Tokenizer.from_gguf(file)
    once = SampleText("a", "0", TEXT * 40)
    whole = tokenizer.encode(once.text, add_special=False)
    some = once.tokens(tokenizer, 10)
    assert 10 < len(some) < len(whole)
    assert some[:10] == whole[:10]
