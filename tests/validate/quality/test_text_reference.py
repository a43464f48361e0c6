"""Whole texts at once give what single rows give, for every family."""

from pathlib import Path

import pytest
import torch

from anespec.manifests.gguf_file import GGUFFile
from anespec.validate.quality.text_reference import TextReference
from anespec.validate.reference import Reference

FAMILIES = Path(__file__).resolve().parents[2] / "data" / "families"
CONTEXT = 512
ROWS = 60
"""More than the sliding windows of the families that have one."""


def row_by_row(reference: Reference, ids: list[int]) -> torch.Tensor:
    layers = len(reference.facts.layers)
    hidden = reference.layers(0, layers, reference.embed(ids), range(len(ids)), reference.caches(), ids)
    return reference.logits(hidden)


@pytest.mark.parametrize("family", sorted(path.stem for path in FAMILIES.glob("*.gguf")))
def test_all_rows_at_once_equal_single_rows(family: str) -> None:
    with GGUFFile(FAMILIES / f"{family}.gguf") as file:
        together = TextReference(file, CONTEXT, resident_layers=8)
        ids = [(7 * i * i + 3 * i + 5) % together.facts.vocabulary for i in range(ROWS)]
        windows = [ids, ids[::-1][:11]]
        for window, hidden in zip(windows, together.hidden_states(windows), strict=True):
            expected = row_by_row(Reference(file, CONTEXT, resident_layers=8), window)
            found = together.logits(hidden)
            assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


def test_some_family_has_a_window_that_is_shorter_than_the_text() -> None:
    windows = []
    for path in FAMILIES.glob("*.gguf"):
        with GGUFFile(path) as file:
            windows += [layer.window for layer in Reference(file, CONTEXT).facts.layers]
    assert any(window is not None and window < ROWS for window in windows)
