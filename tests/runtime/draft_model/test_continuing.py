"""A second model continues texts as it would alone, however they grow, turn back and share passes."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE
from toy import GLOBAL, ToyVerifier, prompt_rows, sequential_text, side_by_side, toy_shape

from anespec.runtime.draft_model.continuing import MAX_FAILURES, Continuation, Continuing
from anespec.runtime.passes import KVCacheGroupShape, PassPlan, VerifierShape
from anespec.runtime.sampling import SamplingParameters

RING = KVCacheGroupShape("ring", 64, 58)
CHUNKS = KVCacheGroupShape("chunks", 8, None, is_chunk=True)
SHAPES = {
    "full attention": toy_shape(sequences=3),
    "a sliding window": toy_shape(
        sequences=2, pools=(KVCacheGroupShape("global", 128, None), RING), context=120
    ),
    "a recurrent layer": toy_shape(sequences=2, pools=(GLOBAL, CHUNKS)),
    "rows side by side": side_by_side(toy_shape(sequences=2)),
}


@contextmanager
def continuing(verifier: ToyVerifier) -> Iterator[Continuing]:
    model = Continuing(verifier)
    try:
        yield model
    finally:
        model.close()


def continued(model: Continuing, *wanted: Continuation) -> None:
    for each in wanted:
        model.begin(each)
    model.wait(lambda: all(each.is_over for each in wanted))


def likeliest(shape: VerifierShape, text: Sequence[int], count: int) -> list[int]:
    return sequential_text(shape, 0, text, count, SamplingParameters())


@pytest.mark.fast_only("full attention", "rows side by side")
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_text_that_grows_and_turns_back_is_continued_as_from_its_start(
    shape: VerifierShape, data: st.DataObject
) -> None:
    tokens = st.integers(0, shape.vocabulary - 1)
    texts = [data.draw(st.lists(tokens, min_size=1, max_size=60)) for _ in range(2)]
    with continuing(ToyVerifier(shape)) as model:
        for _ in range(data.draw(st.integers(1, 6))):
            wanted = [Continuation(tuple(text), data.draw(st.integers(1, 7))) for text in texts]
            continued(model, *wanted)
            for text, each in zip(texts, wanted, strict=True):
                assert each.error is None
                room = min(each.most, shape.context - len(text))
                assert each.tokens == likeliest(shape, text, room)[: len(each.tokens)]
                assert len(each.tokens) >= (len(text) < shape.context)
                right = data.draw(st.integers(0, len(each.tokens)))
                text += [*each.tokens[:right], data.draw(tokens)]
                del text[90:]


def test_a_wrong_guess_costs_only_the_rows_of_the_new_tokens() -> None:
    shape = SHAPES["full attention"]
    verifier = ToyVerifier(shape)
    text = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    with continuing(verifier) as model:
        first = Continuation(tuple(text), 5)
        continued(model, first)
        assert prompt_rows(verifier) == len(text)
        text += [*first.tokens[:2], (first.tokens[2] + 1) % shape.vocabulary]
        continued(model, Continuation(tuple(text), 1))
        assert prompt_rows(verifier) == 10 + 1


@pytest.mark.parametrize("name", ["a sliding window", "a recurrent layer"])
def test_guesses_end_where_a_wrong_one_would_cost_old_rows(name: str) -> None:
    shape = SHAPES[name]
    with continuing(ToyVerifier(shape)) as model:
        for length in range(1, 50):
            longest = model.longest(length)
            assert 1 <= longest <= 9
            if name == "a recurrent layer":
                assert length % 8 + longest <= 8


def test_two_texts_share_passes() -> None:
    verifier = ToyVerifier(SHAPES["full attention"])
    ready = threading.Event()
    original = verifier.forward

    def forward(plan: PassPlan) -> object:
        ready.wait(PATIENCE)
        return original(plan)

    verifier.forward = forward  # type: ignore[method-assign, assignment]
    with continuing(verifier) as model:
        both = [Continuation((1, 2, 3), 6), Continuation((4, 5), 6)]
        for each in both:
            model.begin(each)
        ready.set()
        model.wait(lambda: all(each.is_over for each in both))
    regions = [
        {row.slots[0].home // 64 for row in plan.rows if row.slots[0].home is not None}
        for plan in verifier.passes_run
    ]
    assert {0, 1} in regions


def test_a_text_that_fills_the_context_has_no_continuation() -> None:
    shape = SHAPES["full attention"]
    with continuing(ToyVerifier(shape)) as model:
        full = Continuation((1,) * shape.context, 4)
        nearly = Continuation((1,) * (shape.context - 2), 4)
        longer = Continuation((1,) * (shape.context + 9), 4)
        continued(model, full, nearly, longer)
    assert (full.tokens, longer.tokens) == ([], [])
    assert len(nearly.tokens) == 2


def test_probabilities_are_the_models_own() -> None:
    shape = SHAPES["full attention"]
    verifier = ToyVerifier(shape)
    with continuing(verifier) as model:
        guess = Continuation((1, 2, 3), 4)
        continued(model, guess)
    assert all(1 / shape.vocabulary < each < 1 for each in guess.probabilities)
    product = 1.0
    for each in guess.probabilities:
        product *= each
    assert guess.chance == pytest.approx(product)


def test_only_allowed_tokens_are_guessed_and_the_text_goes_on_behind_them() -> None:
    """Each token is the likeliest allowed one after the tokens before it."""
    shape = SHAPES["full attention"]
    allowed = frozenset(range(0, shape.vocabulary, 2))
    with continuing(ToyVerifier(shape)) as model:
        guess = Continuation((1, 2, 3), 6, allowed=allowed)
        continued(model, guess)
        assert len(guess.tokens) == 6
        assert set(guess.tokens) <= allowed
        assert any(token not in allowed for token in likeliest(shape, (1, 2, 3), 6)), "nothing was left out"
        text = [1, 2, 3]
        for token, probability in zip(guess.tokens, guess.probabilities, strict=True):
            (best,) = likeliest(shape, text, 1)
            if best in allowed:
                assert token == best
            assert 0 < probability <= 1
            text.append(token)
        nothing = Continuation((1, 2, 3), 6, allowed=frozenset())
        continued(model, nothing)
        assert nothing.tokens == []


def test_an_unlikely_guess_ends_a_continuation() -> None:
    with continuing(ToyVerifier(SHAPES["full attention"])) as model:
        whole = Continuation((1, 2, 3), 8)
        continued(model, whole)
        model.stop_below(whole.probabilities[0] * whole.probabilities[1] * 0.999)
        short = Continuation((1, 2, 3), 8)
        continued(model, short)
    assert len(whole.tokens) == 8
    assert 2 <= len(short.tokens) < 8
    assert short.tokens == whole.tokens[: len(short.tokens)]


def test_a_failing_model_ends_continuations_and_can_go_on() -> None:
    verifier = ToyVerifier(SHAPES["full attention"])
    original, broken = verifier.forward, True

    def forward(plan: PassPlan) -> object:
        if broken:
            raise RuntimeError("the device is gone")
        return original(plan)

    verifier.forward = forward  # type: ignore[method-assign, assignment]
    with continuing(verifier) as model:
        failed = Continuation((1, 2, 3), 2)
        continued(model, failed)
        assert "the device is gone" in (failed.error or "")
        broken = False
        after = Continuation((1, 2, 3), 2)
        continued(model, after)
        assert after.tokens == likeliest(verifier.shape, (1, 2, 3), 2)


def test_a_model_that_fails_again_and_again_is_no_longer_asked(caplog: pytest.LogCaptureFixture) -> None:
    verifier = ToyVerifier(SHAPES["full attention"])
    asked: list[PassPlan] = []

    def forward(plan: PassPlan) -> object:
        asked.append(plan)
        raise RuntimeError("the device is gone")

    verifier.forward = forward  # type: ignore[method-assign, assignment]
    with continuing(verifier) as model:
        failed = [Continuation((1, 2, 3), 2) for _ in range(8)]
        for each in failed:
            continued(model, each)
    assert all(each.is_over and each.error and not each.tokens for each in failed)
    assert len(asked) == MAX_FAILURES
    said = [record.getMessage() for record in caplog.records]
    assert said == ["the second model cannot be run, and drafts no more: the device is gone"]


def test_nothing_is_computed_after_closing() -> None:
    model = Continuing(ToyVerifier(SHAPES["full attention"]))
    long = Continuation((1, 2, 3), 50)
    model.begin(long)
    model.close()
    assert long.is_over
    late = Continuation((1,), 1)
    model.begin(late)
    assert late.is_over
    assert late.tokens == []
    model.close()
