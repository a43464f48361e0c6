"""A prompt's tokens can be given one by one: with logprobs, in full passes, and without changing the text."""

import numpy as np
import pytest
from drafting import OracleSession, SourceOf
from hypothesis import given
from hypothesis import strategies as st
from stepping import Clock
from toy import ToyVerifier, drain, everything, ids, sequential_text, toy_shape

from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Event, FinishReason, OutputToken, Request
from anespec.runtime.passes import PassPlan, RowKind
from anespec.runtime.sampling import SamplingParameters
from anespec.system.errors import PromptTooLongError, RequestError

SHAPE = toy_shape(sequences=3)


def run(request: Request) -> tuple[list[OutputToken], list[OutputToken], Event]:
    """The given tokens, the output, and the last event."""
    engine = Engine(ToyVerifier(SHAPE), everything(SHAPE))
    events = list(engine.generate(request))
    tokens = [token for event in events for token in event.tokens]
    given = [token for token in tokens if token.kind is RowKind.PROMPT]
    assert tokens[: len(given)] == given
    return given, tokens[len(given) :], events[-1]


@given(
    text=st.lists(st.integers(0, 11), min_size=1, max_size=40),
    split=st.integers(1, 40),
    count=st.integers(0, 12),
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 99),
)
def test_the_text_does_not_depend_on_what_is_given(
    text: list[int], split: int, count: int, temperature: float, seed: int
) -> None:
    sampling = SamplingParameters(
        temperature=temperature,
        seed=seed,
        logprobs=2,
        repetition_penalty=1.3,
        frequency_penalty=0.2,
        repetition_window=7,
    )
    given, output, last = run(Request(text[:split], count, sampling, given=text[split:]))
    assert [token.id for token in given] == text[split:]
    assert last.finish is FinishReason.LENGTH
    statistics = last.statistics
    assert (statistics.prompt_tokens, statistics.output_tokens) == (len(text), count)
    if count:
        _, expected, _ = run(Request(text, count, sampling))
        assert [(token.id, token.logprob, token.top) for token in output] == [
            (token.id, token.logprob, token.top) for token in expected
        ]


def test_given_tokens_have_the_logprobs_that_they_had_as_output() -> None:
    sampling = SamplingParameters(logprobs=3)
    _, told, _ = run(Request([1, 2, 3], 30, sampling))
    given, output, last = run(
        Request([1], 0, sampling, given=[2, 3, *(token.id for token in told)], end_ids=frozenset(range(12)))
    )
    assert not output and last.finish is FinishReason.LENGTH, "an end token of a prompt ends nothing"
    assert [(token.id, token.logprob, token.top) for token in given[2:]] == [
        (token.id, token.logprob, token.top) for token in told
    ]
    statistics = last.statistics
    assert statistics.passes == statistics.prompt_passes <= 1 + 33 // SHAPE.widths[-1], "full passes"
    assert statistics.decode_passes == statistics.decoded_tokens == 0


def test_drafts_follow_given_tokens() -> None:
    text = sequential_text(SHAPE, 0, [1, 2, 3], 30, SamplingParameters())
    source = SourceOf(lambda _, prompt: OracleSession([1, 2, 3, *text], len(prompt), 0))
    engine = Engine(ToyVerifier(SHAPE), everything(SHAPE), source)
    events = list(engine.generate(Request([1], 30, given=[2, 3])))
    assert ids(events)[2:] == text
    assert events[-1].statistics.accepted >= 15


@pytest.mark.parametrize("prompt", [[1], [1, 2, 3], [*range(12)] * 3])
def test_a_prompt_alone_is_computed_once(prompt: list[int]) -> None:
    verifier = ToyVerifier(SHAPE)
    engine = Engine(verifier, everything(SHAPE))
    events = list(engine.generate(Request(prompt, 0)))
    assert [(event.tokens, event.finish) for event in events] == [((), FinishReason.LENGTH)]
    rows = [row for plan in verifier.passes_run for row in plan.rows if row.kind is not RowKind.PAD]
    assert [row.position for row in rows] == list(range(len(prompt) - 1))
    assert not any(plan.wanted for plan in verifier.passes_run), "the head shards are not needed"
    assert list(engine.generate(Request(prompt, 0)))[-1].statistics.reused_tokens == len(prompt) - 1
    assert ids(list(engine.generate(Request(prompt, 8)))) == sequential_text(
        SHAPE, 0, prompt, 8, SamplingParameters()
    )


def test_a_limit_of_the_outputs_time_begins_with_its_first_token() -> None:
    clock = Clock()
    verifier = ToyVerifier(SHAPE)
    original = verifier.forward

    def forward(plan: PassPlan) -> object:
        clock.now += 1.0
        return original(plan)

    verifier.forward = forward  # type: ignore[method-assign, assignment]
    engine = Engine(verifier, everything(SHAPE), clock=clock)
    prompt = [*range(12)] * 4
    events = list(engine.generate(Request(prompt, 10, output_seconds=3.5)))
    assert events[-1].finish is FinishReason.TIME
    assert 4 <= len(ids(events)) <= 5
    assert ids(list(engine.generate(Request(prompt, 10))))[: len(ids(events))] == ids(events)


def test_they_run_beside_others() -> None:
    engine = Engine(ToyVerifier(SHAPE), everything(SHAPE))
    text = np.random.default_rng(1).integers(0, 12, 40).tolist()
    scored = engine.submit(Request(text[:1], 0, SamplingParameters(logprobs=0), given=text[1:]))
    warmed, told = engine.submit(Request([4, 5], 0)), engine.submit(Request([1, 2, 3], 20))
    events = drain(engine)
    assert ids(events[told]) == sequential_text(SHAPE, 0, [1, 2, 3], 20, SamplingParameters())
    assert ids(events[scored]) == text[1:]
    assert ids(events[warmed]) == []


def test_what_is_given_is_checked_as_the_prompt() -> None:
    engine = Engine(ToyVerifier(SHAPE), everything(SHAPE))
    with pytest.raises(PromptTooLongError, match=f"the prompt has {SHAPE.context + 1} tokens"):
        engine.submit(Request([1], 0, given=[1] * SHAPE.context))
    with pytest.raises(RequestError, match="has token 99"):
        engine.submit(Request([1], 0, given=[99]))
