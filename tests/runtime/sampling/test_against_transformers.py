"""The filters keep what transformers' processors and warpers keep."""

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers.generation import logits_process as theirs

from anespec.runtime.sampling import Sampler, SamplingParameters
from anespec.runtime.sampling.filters import filtered
from anespec.runtime.sampling.ranking import LogitRow, Pages
from anespec.runtime.sampling.row_logits import row_logits

WARPERS = {
    "top_k": (lambda value: theirs.TopKLogitsWarper(value), [1, 5, 40, 300]),
    "typical_p": (lambda value: theirs.TypicalLogitsWarper(value), [0.1, 0.5, 0.9, 0.99]),
    "top_p": (lambda value: theirs.TopPLogitsWarper(value), [0.1, 0.5, 0.9, 0.99]),
    "min_p": (lambda value: theirs.MinPLogitsWarper(value), [0.01, 0.1, 0.9]),
}


def row(seed: int, vocabulary: int, scale: float) -> NDArray[np.float16]:
    return (np.random.default_rng(seed).normal(size=vocabulary) * scale).astype(np.float16)


def kept_by_us(logits: NDArray[np.float16], parameters: SamplingParameters) -> set[int]:
    kept = filtered(LogitRow(logits, Pages(len(logits))), parameters)
    left = kept.row.largest(len(logits)) if kept.rest else kept.candidates
    return set(left.ids.tolist())


def kept_by_them(logits: NDArray[np.float16], name: str, value: float) -> set[int]:
    scores = WARPERS[name][0](value)(None, torch.from_numpy(logits).double()[None])[0]
    return set(torch.nonzero(scores > -torch.inf).flatten().tolist())


@pytest.mark.parametrize("name", WARPERS)
@settings(max_examples=examples(40), deadline=None)
@given(
    data=st.data(),
    seed=st.integers(0, 10**6),
    vocabulary=st.sampled_from([60, 1000, 20_000]),
    scale=st.sampled_from([0.05, 1.0, 4.0, 12.0]),
)
def test_one_filter_keeps_what_theirs_keeps(
    name: str, data: st.DataObject, seed: int, vocabulary: int, scale: float
) -> None:
    value = data.draw(st.sampled_from(WARPERS[name][1]))
    logits = row(seed, vocabulary, scale)
    ours = kept_by_us(logits, SamplingParameters(temperature=1.0, **{name: value}))
    expected = kept_by_them(logits, name, value)
    # Of equal logits at the limit they keep all, or cut them in another order; their sums round differently.
    at_limit = {float(logits[token]) for token in ours ^ expected}
    assert len(at_limit) <= 1 + (name in ("typical_p", "top_p"))


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 10**6), penalty=st.sampled_from([0.5, 1.1, 2.0]), count=st.integers(1, 50))
def test_repetition_is_penalized_as_theirs(seed: int, penalty: float, count: int) -> None:
    logits = row(seed, 300, 1.0)
    seen = np.random.default_rng(seed).integers(0, 300, size=count).tolist()
    processor = theirs.RepetitionPenaltyLogitsProcessor(penalty)
    expected = processor(torch.tensor([seen]), torch.from_numpy(logits).double()[None])[0]
    sampler = Sampler(SamplingParameters(repetition_penalty=penalty), seen[: count // 2], 300)
    for token in seen[count // 2 :]:
        sampler.accept(token)
    chosen = sampler.sample(row_logits(logits, sampler.need), 3).token
    assert float(expected[chosen]) == pytest.approx(float(expected.max()), abs=1e-12)
