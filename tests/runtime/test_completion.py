"""Text from events: stop strings over token boundaries, held-back text, where tokens came from, the end."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from drafting import oracle_source
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from stepping import SteppedVerifier
from toy import ToyVerifier, everything, sequential_text, toy_shape

from anespec.runtime.engine import engine as engine_module
from anespec.runtime.engine.completion import Chunk, TextAssembly, TextStream, start_together
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Event, FinishReason, OutputToken, Request
from anespec.runtime.engine.room import QueueFullError
from anespec.runtime.engine.service import ClosedError, Service
from anespec.runtime.engine.statistics import RequestStats
from anespec.runtime.passes import RowKind
from anespec.runtime.sampling import Sampler, SamplingParameters, TokenLogprob
from anespec.system.errors import AnespecError, RequestError

PIECES = [b"a", b"b", b"ab", b"c", b" ", b"ba", b"\xc3", b"\xa9", b"", b"abc", b"\xf0\x9f", b"!"]
SHAPE = toy_shape(sequences=2)
COST = RequestStats(prompt_tokens=1)


class ToyTokenizer:
    """Token i is PIECES[i]."""

    adds_space = False

    def piece(self, id: int, *, skip_special: bool) -> bytes:
        return PIECES[id]


def assembly(*stops: str) -> TextAssembly:
    return TextAssembly(ToyTokenizer(), (5,), stops)  # type: ignore[arg-type]


def carries(*tokens: int) -> tuple[OutputToken, ...]:
    return tuple(OutputToken(token, RowKind.CARRY) for token in tokens)


def pushed(found: TextAssembly, *events: Event) -> list[Chunk]:
    return [chunk for event in events for chunk in found.push(event)]


def whole(tokens: Sequence[int], stops: Sequence[str]) -> tuple[str, bool]:
    """The text by definition: all of it, cut before the stop string that is complete first."""
    text = b"".join(PIECES[token] for token in tokens).decode(errors="replace")
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return (text[: min(found)[1]], True) if found else (text, False)


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 11), max_size=4), max_size=8),
    st.lists(st.sampled_from(["abc", "ba", "c", "bb", "é", "\ufffd", " a", "ab!", "aab"]), max_size=3),
)
def test_text_is_cut_before_the_first_stop_string_however_tokens_fall(
    groups: list[list[int]], stops: list[str]
) -> None:
    found = assembly(*stops)
    events = [Event(0, COST, carries(*group)) for group in groups]
    chunks = pushed(found, *events, Event(0, COST, finish=FinishReason.LENGTH))
    tokens = [token for group in groups for token in group]
    text, stopped = whole(tokens, stops)
    assert "".join(chunk.text for chunk in chunks) == text
    assert found.summary is not None
    assert found.summary.text == text
    assert found.summary.finish is (FinishReason.STOP if stopped else FinishReason.LENGTH)
    used = [chunk.token for chunk in chunks if chunk.token is not None]
    assert tuple(used) == found.summary.tokens == carries(*tokens)[: len(used)]
    assert stopped or len(used) == len(tokens)


def test_what_may_begin_a_stop_string_is_held_back_until_that_is_known() -> None:
    found = assembly("abc")
    chunks = pushed(found, Event(0, COST, carries(0, 1, 0, 2, 3)))
    assert [chunk.text for chunk in chunks] == ["", "", "ab", "a", ""]
    assert found.summary is not None
    assert (found.summary.text, found.summary.finish) == ("aba", FinishReason.STOP)
    assert found.summary.output_ids == (0, 1, 0, 2, 3)
    assert found.push(Event(0, COST, carries(4), FinishReason.LENGTH)) == []


def test_what_is_still_held_back_comes_at_the_end_without_a_token() -> None:
    found = assembly("abc")
    chunks = pushed(found, Event(0, COST, carries(2, 6)), Event(0, COST, finish=FinishReason.LENGTH))
    assert [(chunk.text, chunk.token) for chunk in chunks][-1] == ("ab\ufffd", None)


def test_a_chunk_says_where_its_token_came_from_and_how_likely_it_was() -> None:
    tops = (TokenLogprob(3, -0.5), TokenLogprob(1, -1.5))
    token = OutputToken(3, RowKind.DRAFT, "lookup", -0.5, tops)
    (chunk,) = assembly().push(Event(0, COST, (token,)))
    assert (chunk.text, chunk.token, chunk.drafted) == ("c", token, True)
    (chunk,) = assembly().push(Event(0, COST, carries(3)))
    assert not chunk.drafted
    assert not Chunk("tail").drafted


def test_a_failed_sequence_raises_its_sentence() -> None:
    with pytest.raises(AnespecError, match="not finite"):
        assembly().push(Event(0, COST, finish=FinishReason.FAILED, error="not finite"))
    with pytest.raises(RequestError, match="stop string is empty"):
        assembly("")


@pytest.fixture
def service() -> Iterator[Service]:
    source = oracle_source([5, 2], text_ids([5, 2], 50))
    with Service(Engine(ToyVerifier(SHAPE), everything(SHAPE), source)) as it:
        yield it


def text_ids(prompt: list[int], count: int) -> list[int]:
    return sequential_text(SHAPE, 0, prompt, count, SamplingParameters())


def completion(service: Service, prompt: list[int], count: int, *stops: str) -> TextStream:
    return TextStream(service, ToyTokenizer(), Request(prompt, count), stops)  # type: ignore[arg-type]


def test_a_completion_s_chunks_are_its_text(service: Service) -> None:
    run = completion(service, [5, 2], 30)
    chunks = list(run)
    expected = text_ids([5, 2], 30)
    assert run.summary.text == "".join(chunk.text for chunk in chunks) == whole(expected, ())[0]
    assert run.summary.output_ids == tuple(expected)
    assert run.summary.prompt_ids == (5, 2)
    assert {chunk.token.source for chunk in chunks if chunk.token and chunk.drafted} == {"oracle"}
    assert run.summary.statistics.accepted == sum(chunk.drafted for chunk in chunks) > 0
    assert list(run) == []


def test_several_completions_run_at_once(service: Service) -> None:
    runs = [completion(service, [i, 2], 20) for i in range(5)]
    for run in runs:
        run.start()
    assert [run.summary.output_ids for run in runs] == [tuple(text_ids([i, 2], 20)) for i in range(5)]


def test_a_stop_string_ends_the_run_and_frees_its_region(service: Service) -> None:
    ids = text_ids([5, 2], 50)
    text = whole(ids, ())[0]
    stop = text[12:15]
    run = completion(service, [5, 2], 50, stop)
    assert (run.summary.text, run.summary.finish) == (text[: text.find(stop)], FinishReason.STOP)
    runs = [completion(service, [i], 20) for i in range(2)]
    assert [run.summary.finish for run in runs] == [FinishReason.LENGTH] * 2


def test_coroutines_complete_side_by_side(service: Service) -> None:
    async def text(prompt: list[int]) -> str:
        return "".join([chunk.text async for chunk in completion(service, prompt, 15, "abc")])

    async def both() -> list[str]:
        return await asyncio.gather(text([5, 2]), text([1, 2]))

    assert asyncio.run(both()) == [whole(text_ids(prompt, 15), ["abc"])[0] for prompt in ([5, 2], [1, 2])]


def test_leaving_early_cancels() -> None:
    verifier = SteppedVerifier(SHAPE)
    with Service(Engine(verifier, everything(SHAPE))) as service:
        run = completion(service, [5, 2], 50)
        chunks = iter(run)
        verifier.let(2)
        next(chunks)
        chunks.close()  # type: ignore[attr-defined]
        verifier.let(100)
        assert run.summary.finish is FinishReason.CANCELLED


def test_another_thread_can_give_a_completion_up(service: Service) -> None:
    run = completion(service, [5, 2], 50)
    run.cancel()
    run.start()
    threading.Thread(target=run.cancel).start()
    assert run.summary.finish in (FinishReason.CANCELLED, FinishReason.LENGTH)


def test_runs_that_are_started_together_all_start_or_none_does() -> None:
    verifier = SteppedVerifier(SHAPE)
    with Service(Engine(verifier, everything(SHAPE)), queue=1) as service:
        first, second = (completion(service, [i, 5], 4) for i in range(2))
        start_together([first, second])
        runs = [completion(service, [i, 6], 4) for i in range(2)]
        with pytest.raises(QueueFullError):
            start_together(runs)
        assert service.load.waiting == 0
        start_together([first, runs[0]])
        with pytest.raises(QueueFullError):
            runs[1].start()
        verifier.let(100)
        assert first.summary.output_ids == tuple(text_ids([0, 5], 4))
        assert runs[0].summary.output_ids == tuple(text_ids([0, 6], 4))
        assert runs[1].summary.output_ids == tuple(text_ids([1, 6], 4))


def test_a_run_is_checked_once_and_started_later(monkeypatch: pytest.MonkeyPatch, service: Service) -> None:
    made: list[Sampler] = []

    class Counted(Sampler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(engine_module, "Sampler", Counted)
    run = completion(service, [5, 2], 4)
    run.prepare()
    assert run.summary.output_ids == tuple(text_ids([5, 2], 4))
    assert len(made) == 1
    with pytest.raises(RequestError, match="empty"):
        completion(service, [], 4).prepare()


def test_a_run_that_is_given_up_while_it_starts_does_not_run_on() -> None:
    verifier = SteppedVerifier(SHAPE)
    with Service(Engine(verifier, everything(SHAPE))) as service:
        run = completion(service, [5, 2], 50)
        run.cancel()
        run.start()
        verifier.let(100)
        assert (run.summary.finish, len(run.summary.tokens) < 50) == (FinishReason.CANCELLED, True)


def test_a_closed_service_and_an_impossible_prompt_say_so() -> None:
    service = Service(Engine(ToyVerifier(SHAPE), everything(SHAPE)))
    with pytest.raises(RequestError, match="empty"):
        completion(service, [], 5).start()
    service.close()
    with pytest.raises(ClosedError):
        _ = completion(service, [1], 5).summary
