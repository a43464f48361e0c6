"""Which tokens are named as the worst, and what is said of them."""

import numpy as np
import pytest
from planted import EMBEDDED

from anespec.gguf.container import GGUFFile
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.validate.quality.divergence import diverge, log_softmax
from anespec.validate.quality.gate import (
    LONGEST_TEXT,
    MAX_WORST_TOKENS,
    TOKENS_BEFORE,
    cut_windows,
    worst_tokens,
)

TEXT = "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    with GGUFFile(EMBEDDED) as file:
        return Tokenizer.from_gguf(file)


def test_the_largest_divergences_in_their_places(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT, add_special=False)
    windows = cut_windows(ids, tokenizer.bos_id, 16, len(ids))
    assert len(windows) > 1
    targets = np.array([token for window in windows for token in window.targets])
    rng = np.random.default_rng(3)
    reference = rng.standard_normal((len(targets), tokenizer.vocabulary_size)).astype(np.float32)
    spoiled = [len(targets) - 1, 3, 20]
    reference[spoiled, targets[spoiled]] = 0
    found = (reference + rng.standard_normal(reference.shape) * 0.01).astype(np.float16)
    for strength, number in zip((14, 11, 8), spoiled, strict=True):
        found[number, targets[number]] += strength
    worst = worst_tokens(tokenizer, windows, diverge(reference, found, targets))
    assert [w.number for w in worst[:3]] == spoiled
    assert len(worst) == MAX_WORST_TOKENS
    assert [w.kl for w in worst] == sorted((w.kl for w in worst), reverse=True)
    read = [(window, place) for window in windows for place in range(1, len(window.ids))]
    for entry in worst[:3]:
        window, place = read[entry.number]
        before = window.ids[max(0, place - TOKENS_BEFORE) : place]
        assert entry.before == tokenizer.decode(before, skip_special=False, continues=True)
        assert entry.token == entry.artifact.top
        expected, spoilt = (log_softmax(side[entry.number]) for side in (reference, found))
        assert entry.artifact.top_probability == pytest.approx(np.exp(spoilt.max()))
        assert entry.artifact.token_probability == entry.artifact.top_probability
        assert entry.reference.top_probability == pytest.approx(np.exp(expected.max()))
        assert entry.reference.token_probability == pytest.approx(np.exp(expected[targets[entry.number]]))
        top = int(expected.argmax())
        assert entry.reference.top == tokenizer.decode([top], skip_special=False, continues=True)
        assert len(entry.before) <= LONGEST_TEXT
