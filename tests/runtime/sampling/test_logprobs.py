"""Logprobs are the model's own, of the row that the token is sampled from."""

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from anespec.runtime.passes import RowLogits
from anespec.runtime.sampling import Sampler, SamplingParameters


def random_row(seed: int, vocabulary: int, scale: float) -> NDArray[np.float16]:
    return (np.random.default_rng(seed).normal(size=vocabulary) * scale - 3).astype(np.float16)


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocabulary=st.sampled_from([2, 300, 4096, 50_000]),
    scale=st.sampled_from([0.0, 0.5, 3.0, 20.0]),
    top=st.integers(0, 20),
    changed=st.booleans(),
)
def test_logprobs_are_those_of_a_log_softmax(
    seed: int, vocabulary: int, scale: float, top: int, changed: bool
) -> None:
    logits = random_row(seed, vocabulary, scale)
    expected = torch.log_softmax(torch.from_numpy(logits).double(), dim=0).numpy()
    parameters = SamplingParameters(
        temperature=0.7,
        top_k=30,
        seed=seed,
        logprobs=top,
        logit_bias=((1, 5.0),) if changed else (),
        repetition_penalty=1.3 if changed else 1.0,
    )
    sampled = Sampler(parameters, [0, 1], vocabulary).sample(RowLogits(logits=logits), 4)
    assert sampled.logprob == pytest.approx(expected[sampled.token], abs=2e-5)
    ranked = sorted(range(vocabulary), key=lambda token: (-logits[token], token))[:top]
    assert [entry.token for entry in sampled.top] == ranked
    np.testing.assert_allclose([entry.logprob for entry in sampled.top], expected[ranked], atol=2e-5)


def test_logprobs_change_no_token() -> None:
    logits = random_row(1, 5000, 2.0)
    for plain in (
        SamplingParameters(),
        SamplingParameters(temperature=1.0),
        SamplingParameters(temperature=1.0, top_p=0.8, repetition_penalty=1.2),
    ):
        told = plain.with_changes(logprobs=3)
        for position in range(30):
            row = RowLogits(logits=logits)
            expected = Sampler(plain.with_changes(logit_bias=((0, 0.0),)), [7], 5000).sample(row, position)
            assert Sampler(told, [7], 5000).sample(row, position).token == expected.token
            assert expected.logprob is None and not expected.top


def test_a_token_that_the_model_rules_out_has_no_probability() -> None:
    logits = np.array([1.0, -np.inf, 2.0], dtype=np.float16)
    sampled = Sampler(SamplingParameters(logprobs=3), [0], 3).sample(RowLogits(logits=logits), 1)
    assert [entry.token for entry in sampled.top] == [2, 0]
