"""What several sequences gain from one another, and what a grammar's forced tokens gain from rows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import toy
from drafting import SourceByReference, oracle_source
from examples import examples
from forcing import FIRST, LAST, ForcingSampler
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import ToyVerifier, drain, everything, ids, prompt_rows, sequential_text, toy_shape

from anespec.runtime.drafters.lookup import LookupSource
from anespec.runtime.engine import engine as engine_module
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import FinishReason, Request
from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.passes import KVCacheGroupShape, RowKind, VerifierShape
from anespec.runtime.sampling import SamplingParameters

GREEDY = SamplingParameters()


def text(shape: VerifierShape, prompt: Sequence[int], count: int, seed: int | None = None) -> list[int]:
    sampling = GREEDY if seed is None else SamplingParameters(temperature=1.0, seed=seed)
    return sequential_text(shape, 0, prompt, count, sampling)


def tokens_per_pass(shape: VerifierShape, prompts: list[list[int]], count: int) -> float:
    verifier = ToyVerifier(shape)
    engine = Engine(verifier, everything(shape))
    numbers = [engine.submit(Request(prompt, count)) for prompt in prompts]
    events = drain(engine)
    for number, prompt in zip(numbers, prompts, strict=True):
        assert ids(events[number]) == text(shape, prompt, count)
    return len(prompts) * count / len(verifier.passes_run)


def test_four_prompts_at_once_give_nearly_four_times_the_tokens_per_pass() -> None:
    shape = toy_shape(sequences=4, t_max=64)
    prompts = [[i, *range(12)] for i in range(4)]
    assert tokens_per_pass(shape, prompts, 40) >= 3.5 * tokens_per_pass(shape, prompts[:1], 40)


@pytest.mark.parametrize("t_max", [4, 16])
def test_equal_prompts_at_once_are_prefilled_once(t_max: int) -> None:
    """Four answers to one prompt, each with its own seed."""
    shape = toy_shape(sequences=4, t_max=t_max)
    verifier = ToyVerifier(shape)
    engine = Engine(verifier, everything(shape))
    prompt = [i % 12 for i in range(40)]
    requests = [Request(prompt, 8, SamplingParameters(temperature=1.0, seed=seed)) for seed in range(4)]
    numbers = [engine.submit(request) for request in requests]
    events = drain(engine)
    assert [ids(events[number]) for number in numbers] == [text(shape, prompt, 8, seed) for seed in range(4)]
    assert len({tuple(ids(events[number])) for number in numbers}) == 4
    # The others run their last prompt row, and what of a block would have stayed empty.
    assert prompt_rows(verifier) <= len(prompt) + 3 * (shape.block + 1)
    assert sum(events[number][-1].statistics.copied_slots for number in numbers) >= 3 * 35


def test_who_waits_for_a_prefix_keeps_a_place_and_goes_on_when_that_one_is_given_up() -> None:
    shape = toy_shape(sequences=2)
    verifier = ToyVerifier(shape)
    engine = Engine(verifier, everything(shape))
    prompt = [i % 12 for i in range(40)]
    first, second = engine.submit(Request(prompt, 5)), engine.submit(Request([*prompt[:30], 9], 5))
    other = engine.submit(Request([7], 5))
    engine.step()
    assert engine.cancel(first) is not None
    events = drain(engine)
    assert ids(events[second]) == text(shape, [*prompt[:30], 9], 5)
    assert events[second][-1].statistics.reused_tokens > 0
    assert ids(events[other]) == text(shape, [7], 5)


def test_nobody_waits_for_a_prefix_that_a_block_holds() -> None:
    shape = toy_shape(sequences=3, t_max=64)
    engine = Engine(ToyVerifier(shape), everything(shape))
    prompts = [[1, 2, 3, 4, *tail] for tail in ([9] * 30, [6], list(range(12)))]
    numbers = [engine.submit(Request(prompt, 3)) for prompt in prompts]
    assert [event.sequence for event in engine.step()] == numbers
    events = drain(engine)
    assert [ids(events[number]) for number in numbers] == [text(shape, prompt, 3)[1:] for prompt in prompts]


def test_nobody_waits_for_a_prefix_that_has_gone_by() -> None:
    shape = toy_shape(sequences=2, t_max=16)
    engine = Engine(ToyVerifier(shape), everything(shape))
    stem = list(range(12))
    engine.submit(Request([*stem, *stem, *stem], 3))
    engine.step()
    late = engine.submit(Request([*stem, 5], 3))
    assert [event.sequence for event in engine.step()] == [late]
    (_, end) = drain(engine)[late]
    assert end.statistics.reused_tokens == len(stem)


def test_higher_priority_goes_first_and_equals_in_turn() -> None:
    shape = toy_shape()
    engine = Engine(ToyVerifier(shape), everything(shape))
    numbers = [
        engine.submit(Request([i], 2, priority=priority)) for i, priority in enumerate([0, 0, 5, -1, 5])
    ]
    ended = []
    while engine.busy:
        ended += [event.sequence for event in engine.step() if event.finish is not None]
    assert ended == [numbers[i] for i in (2, 4, 0, 1, 3)]


def test_passes_look_no_farther_than_the_regions_in_use() -> None:
    shape = toy_shape(
        context=500,
        sequences=4,
        pools=(KVCacheGroupShape("global", 512, None),),
        partial_spans=True,
        t_max=128,
    )
    verifier = ToyVerifier(shape)
    engine = Engine(verifier, everything(shape))
    prompt = [i % 12 for i in range(250)]
    assert ids(list(engine.generate(Request(prompt, 10)))) == text(shape, prompt, 10)
    assert {plan.spans for plan in verifier.passes_run} == {(256,), (1536,)}, "the second page is the fifth"
    verifier.passes_run.clear()
    for number in range(4):
        engine.submit(Request([number, *prompt[:200]], 3))
    drain(engine)
    assert [plan.spans for plan in verifier.passes_run][-1] == (1024,), "four short texts, four pages"
    assert max(plan.spans for plan in verifier.passes_run) == (1024,)


def test_a_ring_is_kept_within_its_budget_and_copied_to_another_region() -> None:
    pools = (KVCacheGroupShape("global", 256, None), KVCacheGroupShape("local", 64, 16))
    shape = toy_shape(context=200, sequences=2, pools=pools)
    engine = Engine(ToyVerifier(shape), everything(shape))
    stem = [i % 12 for i in range(40)]
    long = engine.submit(Request(stem, 150))
    for _ in range(100):
        engine.step()
    again = engine.submit(Request([*stem, 3], 5))
    events = drain(engine)
    assert ids(events[again]) == text(shape, [*stem, 3], 5)
    assert ids(events[long])[-5:] == text(shape, stem, 150)[-5:]
    statistics = events[again][-1].statistics
    assert (statistics.reused_tokens, statistics.copied_slots) == (40, 40 + 16)


@pytest.fixture
def forcing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy grammar, in the engine and in the sequential computation."""
    monkeypatch.setattr(engine_module, "Sampler", ForcingSampler)
    monkeypatch.setattr(toy, "Sampler", ForcingSampler)


@pytest.mark.parametrize("speculate", [False, True])
def test_forced_tokens_fill_rows_and_are_not_sampled(forcing: None, speculate: bool) -> None:
    shape = toy_shape(block=8, t_max=8)
    verifier = ToyVerifier(shape)
    prompt, endless = [1, 2, 3], SamplingParameters(logit_bias=((LAST, -100.0),))
    expected = sequential_text(shape, 0, prompt, 40, endless)
    assert tuple(expected[:2]) == FIRST
    proven = replace(everything(shape), speculate=speculate)
    engine = Engine(verifier, proven, oracle_source(prompt, expected))
    events = list(engine.generate(Request(prompt, 40, endless)))
    assert ids(events) == expected
    statistics = events[-1].statistics
    kinds = [token.kind for event in events for token in event.tokens]
    assert statistics.forced_tokens == kinds.count(RowKind.FORCED) > 3
    assert statistics.tokens_per_pass > 1.3
    assert bool(statistics.accepted) == speculate
    rows = [row for plan in verifier.passes_run for row in plan.rows if row.kind is RowKind.FORCED]
    assert len(rows) > 3


def test_a_finished_grammar_ends_the_text(forcing: None) -> None:
    shape = toy_shape()
    for first in range(12):
        expected = text(shape, [first], 50)
        events = list(Engine(ToyVerifier(shape), everything(shape)).generate(Request([first], 50)))
        assert ids(events) == expected
        assert events[-1].finish is (FinishReason.STOP if expected[-1] == 11 else FinishReason.LENGTH)


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_a_grammar_s_text_is_the_same_whatever_is_drafted_and_however_it_is_cut(data: st.DataObject) -> None:
    shape = toy_shape(
        block=data.draw(st.sampled_from([1, 2, 4])),
        t_max=data.draw(st.sampled_from([4, 16])),
        context=data.draw(st.integers(12, 60)),
        sequences=2,
    )
    prompts = data.draw(
        st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=9), min_size=1, max_size=4)
    )
    counts = [data.draw(st.integers(1, 30)) for _ in prompts]
    logprobs = data.draw(st.sampled_from([None, 0]))
    ends = data.draw(st.sampled_from([frozenset[int](), frozenset({2}), frozenset({9})]))
    sampling = SamplingParameters(temperature=1.0, seed=data.draw(st.integers(0, 99)), logprobs=logprobs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "Sampler", ForcingSampler)
        patch.setattr(toy, "Sampler", ForcingSampler)
        texts = [
            sequential_text(shape, 0, prompt, count, sampling, ends)
            for prompt, count in zip(prompts, counts, strict=True)
        ]

        by_lookup = [data.draw(st.booleans()) for _ in prompts]

        def make(place: str, prompt: Sequence[int]) -> Any:
            i = int(place)
            source = LookupSource() if by_lookup[i] else oracle_source(prompts[i], texts[i], 4)
            return source.open("", prompt)

        engine = Engine(ToyVerifier(shape), everything(shape), SourceByReference(make))
        numbers = [
            engine.submit(
                Request(
                    prompt,
                    count,
                    sampling,
                    ends,
                    reference=(i,),
                    speculate=data.draw(st.booleans()),
                )
            )
            for i, (prompt, count) in enumerate(zip(prompts, counts, strict=True))
        ]
        events = drain(engine)
        assert [ids(events[number]) for number in numbers] == texts
        tokens = [token for found in events.values() for event in found for token in event.tokens]
        assert all((token.logprob is not None) == (logprobs is not None) for token in tokens)


def test_what_one_owner_asked_serves_no_other_nor_lets_another_wait() -> None:
    shape = toy_shape(
        sequences=2, pools=(KVCacheGroupShape("global", 128, None), KVCacheGroupShape("local", 64, 20))
    )
    engine = Engine(ToyVerifier(shape), everything(shape))
    prompt = [i % 7 for i in range(40)]

    def ask(*tenants: str) -> list[RequestStats]:
        numbers = [engine.submit(Request(prompt, 9, tenant=tenant)) for tenant in tenants]
        events = drain(engine)
        assert all(ids(events[number]) == text(shape, prompt, 9) for number in numbers)
        return [events[number][-1].statistics for number in numbers]

    assert [found.reused_tokens for found in ask("me", "you")] == [0, 0]
    assert [found.reused_tokens for found in ask("me", "you", "you")] == [39, 39, 39]
    assert [found.reused_tokens for found in ask("she")] == [0]
    saved = engine.save_prefix(prompt, "she")
    assert saved is not None
    assert engine.save_prefix(prompt, "he") is None
