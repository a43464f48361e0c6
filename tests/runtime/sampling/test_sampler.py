"""Tokens follow the processed distribution, and depend on seed and position alone."""

import math
from collections import Counter
from itertools import accumulate

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from slow import slow_but

from anespec.runtime.sampling import Sampler, SamplingParameters
from anespec.runtime.sampling.filters import filtered
from anespec.runtime.sampling.ranking import LogitRow, Pages
from anespec.runtime.sampling.row_logits import row_logits
from anespec.runtime.sampling.sampler import Adjustments, uniform
from anespec.system.errors import AnespecError


def by_definition(
    logits: NDArray[np.float16], parameters: SamplingParameters, prompt: list[int], output: list[int]
) -> dict[int, float]:
    """The processed distribution in the plainest code, float64 throughout."""
    values = {token: float(logit) for token, logit in enumerate(logits)}
    for token, bias in parameters.logit_bias:
        values[token] += bias
    # A window of 0 is the whole text.
    for token in {*[*prompt, *output][-parameters.repetition_window :]}:
        penalty = parameters.repetition_penalty
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
    for token, count in Counter(output).items():
        values[token] -= parameters.presence_penalty + count * parameters.frequency_penalty
    ranked = sorted(values, key=lambda token: (-values[token], token))
    if parameters.temperature == 0:
        return {ranked[0]: 1.0}
    if parameters.top_k:
        ranked = ranked[: parameters.top_k]
    if parameters.typical_p < 1:
        chances = {token: math.exp(values[token]) / total(values, ranked) for token in ranked}
        entropy = -sum(chance * math.log(chance) for chance in chances.values())
        by_surprise = sorted(ranked, key=lambda token: abs(-math.log(chances[token]) - entropy))
        reached = list(accumulate(chances[token] for token in by_surprise))
        fewest = 1 + sum(sum_ < parameters.typical_p for sum_ in reached)
        ranked = sorted(by_surprise[:fewest], key=lambda token: (-values[token], token))
    if parameters.top_p < 1:
        top_p, reached, kept = parameters.top_p * total(values, ranked), 0.0, 0
        while kept == 0 or (kept < len(ranked) and reached < top_p):
            reached += math.exp(values[ranked[kept]])
            kept += 1
        ranked = ranked[:kept]
    if parameters.min_p > 0:
        floor = values[ranked[0]] + math.log(parameters.min_p)
        ranked = [token for token in ranked if values[token] >= floor]
    highest = values[ranked[0]]
    weights = {token: math.exp((values[token] - highest) / parameters.temperature) for token in ranked}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


def kept_by_filters(logits: NDArray[np.float16], parameters: SamplingParameters) -> set[int]:
    kept = filtered(LogitRow(logits, Pages(len(logits))), parameters)
    left = kept.row.largest(len(logits)) if kept.rest else kept.candidates
    return set(left.ids.tolist())


def total(values: dict[int, float], tokens: list[int]) -> float:
    return sum(math.exp(values[token]) for token in tokens)


def random_logits(seed: int, vocabulary: int, scale: float = 2.0) -> NDArray[np.float16]:
    return (np.random.default_rng(seed).normal(size=vocabulary) * scale).astype(np.float16)


def token_of(sampler: Sampler, logits: NDArray[np.float16], position: int) -> int:
    return sampler.sample(row_logits(logits, sampler.need), position).token


def sampled_shares(sampler: Sampler, logits: NDArray[np.float16], count: int) -> NDArray[np.float64]:
    tokens = [token_of(sampler, logits, position) for position in range(count)]
    return np.bincount(tokens, minlength=len(logits)) / count


@pytest.mark.parametrize(
    "parameters",
    [
        *slow_but(
            [
                SamplingParameters(temperature=1.0),
                SamplingParameters(temperature=0.5, seed=3),
                SamplingParameters(temperature=1.5, top_k=7, seed=4),
                SamplingParameters(temperature=1.0, top_p=0.7, seed=5),
                SamplingParameters(temperature=1.0, min_p=0.1, seed=6),
                SamplingParameters(temperature=1.0, repetition_penalty=1.5, seed=8),
            ]
        ),
        SamplingParameters(temperature=1.0, typical_p=0.6, seed=2),
        SamplingParameters(temperature=0.8, top_k=20, top_p=0.9, min_p=0.05, seed=7),
        SamplingParameters(temperature=1.0, repetition_penalty=1.5, repetition_window=5, seed=8),
        SamplingParameters(temperature=1.0, presence_penalty=1.0, frequency_penalty=0.7, seed=9),
        SamplingParameters(temperature=1.0, logit_bias=((3, 5.0), (4, -100.0)), top_k=5, seed=10),
    ],
    ids=str,
)
@pytest.mark.parametrize("vocabulary", slow_but([30, 700], 30))
def test_tokens_follow_the_processed_distribution(parameters: SamplingParameters, vocabulary: int) -> None:
    logits = random_logits(1, vocabulary)
    prompt, output = [0, 1, 2, 3], [2, 2, 5, 6, 7, 7, 7]
    sampler = Sampler(parameters, prompt, vocabulary)
    for token in output:
        sampler.accept(token)
    draws = 2000
    shares = sampled_shares(sampler, logits, draws)
    expected = np.zeros(vocabulary)
    for token, chance in by_definition(logits, parameters, prompt, output).items():
        expected[token] = chance
    assert not shares[expected == 0].any()
    assert (np.abs(shares - expected) < 5 * np.sqrt(expected / draws) + 2e-3).all()


@given(
    text=st.lists(st.integers(0, 5), max_size=12),
    begin=st.integers(0, 12),
    window=st.integers(0, 14),
    forked=st.integers(0, 12),
)
def test_a_window_of_repetitions_moves_with_the_text(
    text: list[int], begin: int, window: int, forked: int
) -> None:
    """Whatever is prompt and what output, and in copies, as drafts' rows have them."""
    parameters = SamplingParameters(repetition_penalty=2.0, repetition_window=window, frequency_penalty=0.5)
    prompt, output = text[:begin], text[begin:]
    adjustments = Adjustments(parameters, prompt)
    for number, token in enumerate(output):
        if number == forked:
            other, adjustments = adjustments, adjustments.fork()
            other.accept(0)
        adjustments.accept(token)
    logits = np.arange(1.0, 7.0)
    found = dict(enumerate(logits.tolist()))
    found |= dict(
        zip(adjustments.ids.tolist(), adjustments.adjusted(logits[adjustments.ids]).tolist(), strict=True)
    )
    for token, logit in enumerate(logits.tolist()):
        penalized = logit / 2 if token in text[-window:] else logit
        assert found[token] == penalized - 0.5 * output.count(token)


@settings(max_examples=examples(200), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocabulary=st.integers(2, 300),
    top_k=st.integers(0, 400),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.2, 1.0]),
    typical_p=st.sampled_from([1.0, 1.0, 0.95, 0.5, 0.0]),
    scale=st.sampled_from([0.0, 0.1, 2.0, 12.0]),
)
def test_filters_keep_what_they_should(
    seed: int, vocabulary: int, top_k: int, top_p: float, min_p: float, typical_p: float, scale: float
) -> None:
    parameters = SamplingParameters(
        temperature=1.0, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p
    )
    logits = random_logits(seed, vocabulary, scale)
    actual = kept_by_filters(logits, parameters)
    expected = set(by_definition(logits, parameters, [], []))
    # A sum that falls on the limit of top_p within rounding may keep one token more or fewer.
    assert len(actual ^ expected) <= (top_p < 1) + (typical_p < 1)


def test_a_wide_nucleus_is_found_beyond_the_first_guess() -> None:
    logits = random_logits(3, 5000, 0.2)
    parameters = SamplingParameters(temperature=1.0, top_p=0.6)
    kept = kept_by_filters(logits, parameters)
    assert 1024 < len(kept) < 5000
    assert len(kept ^ set(by_definition(logits, parameters, [], []))) <= 1


some_floats = st.one_of(
    st.floats(-60000, 60000, width=16), st.floats(-5, -0.0, width=16), st.sampled_from([0.0, -0.0, 1.0])
)


@given(
    st.one_of(
        st.lists(some_floats, min_size=1, max_size=100),
        st.lists(st.floats(-60000, 0, width=16), min_size=1, max_size=100),
    )
)
def test_greedy_takes_the_lowest_of_the_largest(values: list[float]) -> None:
    logits = np.array(values, dtype=np.float16)
    expected = int(logits.argmax())
    assert token_of(Sampler(SamplingParameters(), [0], len(values)), logits, 5) == expected
    biased = SamplingParameters(logit_bias=((0, 0.0),))
    assert token_of(Sampler(biased, [0], len(values)), logits, 5) == expected


def test_negative_zero_ties_with_zero() -> None:
    logits = np.array([-1, -0.0, 0.0], dtype=np.float16)
    assert token_of(Sampler(SamplingParameters(), [0], 3), logits, 1) == 1


def test_a_token_depends_on_seed_and_position_alone() -> None:
    logits = random_logits(2, 500)
    parameters = SamplingParameters(temperature=1.0, seed=11)
    forwards = Sampler(parameters, [1], 500)
    backwards = Sampler(parameters, [9, 9], 500)
    positions = range(50)
    sampled = {position: token_of(forwards, logits, position) for position in positions}
    assert sampled == {position: token_of(backwards, logits, position) for position in reversed(positions)}
    assert len(set(sampled.values())) > 10
    other = Sampler(SamplingParameters(temperature=1.0, seed=12), [1], 500)
    assert sampled != {position: token_of(other, logits, position) for position in positions}


def test_the_uniform_numbers_are_philox_keyed_by_seed_and_position() -> None:
    key = np.array([7, 21], dtype=np.uint64)
    expected = np.random.Generator(np.random.Philox(key=key)).random()
    assert uniform(7, 21) == expected


def test_tiny_temperatures_are_greedy() -> None:
    logits = random_logits(4, 200)
    for temperature in (1e-300, 1e-40, 1e-7):
        sampler = Sampler(SamplingParameters(temperature=temperature), [0], 200)
        assert {token_of(sampler, logits, position) for position in range(20)} == {int(logits.argmax())}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
def test_logits_that_are_not_numbers_are_an_error(temperature: float, value: float) -> None:
    logits = np.full(100, value, dtype=np.float16)
    with pytest.raises(AnespecError, match="position 9 are not finite"):
        token_of(Sampler(SamplingParameters(temperature=temperature), [0], 100), logits, 9)
