"""Queue, cancellation, errors, reuse of regions, fairness and limits."""

from dataclasses import replace

import numpy as np
import pytest
from drafting import HostileSession, SourceOf, oracle_source
from numpy.typing import NDArray
from toy import GLOBAL, ToyVerifier, drain, everything, ids, prompt_rows, sequential_text, toy_shape

import anespec.runtime.engine.engine as engine_module
from anespec.runtime.drafters import DraftSource
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Event, FinishReason, Request
from anespec.runtime.passes import KVCacheGroupShape, PassPlan, RowKind, VerifierShape
from anespec.runtime.sampling import Sampler, SamplingParameters
from anespec.system.errors import AnespecError, RequestError

GREEDY = SamplingParameters()


def text(shape: VerifierShape, prompt: list[int], max_tokens: int | None) -> list[int]:
    return sequential_text(shape, 0, prompt, max_tokens, GREEDY)


def plain_engine(verifier: ToyVerifier, source: DraftSource | None = None) -> Engine:
    shape = verifier.shape
    return Engine(verifier, replace(everything(shape), widths=(shape.block,)), source)


def test_second_turn_prefills_only_what_is_new() -> None:
    shape = toy_shape()
    verifier = ToyVerifier(shape)
    engine = plain_engine(verifier)
    first = list(range(10))
    answer = ids(list(engine.generate(Request(first, 8))))
    before = prompt_rows(verifier)
    second = [*first, *answer, 1, 2, 3]
    events = list(engine.generate(Request(second, 8)))
    assert ids(events) == text(shape, second, 8)
    assert events[-1].statistics.reused_tokens == len(first) + len(answer) - 1
    assert prompt_rows(verifier) - before == 4


def test_the_same_prompt_again_runs_one_prompt_row() -> None:
    verifier = ToyVerifier(toy_shape())
    engine = plain_engine(verifier)
    once = ids(list(engine.generate(Request(range(10), 5))))
    before = prompt_rows(verifier)
    assert ids(list(engine.generate(Request(range(10), 5)))) == once
    assert prompt_rows(verifier) - before == 1


def test_a_prefix_in_a_busy_region_is_copied() -> None:
    shape = toy_shape(sequences=2)
    verifier = ToyVerifier(shape)
    engine = plain_engine(verifier)
    stem = list(range(12))
    engine.submit(Request(stem, 30))
    for _ in range(6):
        engine.step()
    before = prompt_rows(verifier)
    second = engine.submit(Request([*stem, 3, 3], 10))
    events = drain(engine)
    assert ids(events[second]) == text(shape, [*stem, 3, 3], 10)
    assert events[second][-1].statistics.reused_tokens == len(stem)
    assert prompt_rows(verifier) - before == 2


@pytest.mark.parametrize("ring_bytes", [0, 1 << 20])
def test_a_ring_is_reused_only_while_it_or_a_copy_holds_the_window(ring_bytes: int) -> None:
    local = KVCacheGroupShape("local", 64, 16)
    shape = toy_shape(context=200, pools=(KVCacheGroupShape("global", 256, None), local))
    verifier = ToyVerifier(shape)
    engine = Engine(verifier, everything(shape), ring_bytes=ring_bytes)
    stem = [i % 12 for i in range(40)]
    for generated, reused in [(10, 39), (100, len(stem) - 1 if ring_bytes else 0)]:
        list(engine.generate(Request(stem, generated)))
        events = list(engine.generate(Request(stem, 5)))
        assert ids(events) == text(shape, stem, 5)
        assert events[-1].statistics.reused_tokens == reused


def test_a_chat_keeps_its_region_while_another_one_is_idle() -> None:
    verifier = ToyVerifier(toy_shape(sequences=2))
    engine = plain_engine(verifier)
    chats = [[1, 2, 3, 4, 5], [1, 9, 8, 7, 6]]
    for turn in range(3):
        for chat in chats:
            events = list(engine.generate(Request(chat, 4)))
            assert (events[-1].statistics.reused_tokens >= len(chat) - 3) == (turn > 0)
            chat += [*ids(events), 11, 10]


def test_requests_wait_in_turn_for_a_region() -> None:
    shape = toy_shape(sequences=2)
    engine = plain_engine(ToyVerifier(shape))
    prompts = [[i, i + 1] for i in range(5)]
    numbers = [engine.submit(Request(prompt, 6)) for prompt in prompts]
    first_seen: list[int] = []
    events: dict[int, list[Event]] = {number: [] for number in numbers}
    while engine.busy:
        for event in engine.step():
            events[event.sequence].append(event)
            if event.sequence not in first_seen:
                first_seen.append(event.sequence)
    assert first_seen == numbers
    for number, prompt in zip(numbers, prompts, strict=True):
        assert ids(events[number]) == text(shape, prompt, 6)
    assert events[numbers[4]][-1].statistics.queue_seconds > 0


def test_more_sequences_than_rows_take_turns() -> None:
    shape = toy_shape(block=2, sequences=3)
    engine = plain_engine(ToyVerifier(shape))
    numbers = [engine.submit(Request([i], 20)) for i in range(3)]
    counts = dict.fromkeys(numbers, 0)
    for _ in range(15):
        for event in engine.step():
            counts[event.sequence] += len(event.tokens)
        assert max(counts.values()) - min(counts.values()) <= 1


def test_a_long_prompt_does_not_hold_up_the_others() -> None:
    shape = toy_shape(sequences=2)
    engine = plain_engine(ToyVerifier(shape))
    first = engine.submit(Request([1], 30))
    engine.step()
    engine.submit(Request([3] * 40, 5))
    for _ in range(10):
        assert [event.sequence for event in engine.step()] == [first]


def test_wide_prefill_takes_few_passes_and_decodes_at_block() -> None:
    shape = toy_shape(t_max=16)
    verifier = ToyVerifier(shape)
    engine = Engine(verifier, everything(shape))
    assert ids(list(engine.generate(Request(range(40 % 12, 12), 5)))) == text(shape, list(range(4, 12)), 5)
    verifier.passes_run.clear()
    events = list(engine.generate(Request([i % 12 for i in range(40)], 5)))
    assert events[-1].statistics.prompt_passes == 3
    assert [len(plan.rows) for plan in verifier.passes_run] == [16, 16, 8, 1, 1, 1, 1]
    assert [len(plan.wanted) for plan in verifier.passes_run[:3]] == [0, 0, 1]


def test_a_pass_is_as_narrow_as_its_rows_allow() -> None:
    shape = toy_shape(block=2, t_max=8, sequences=3)
    verifier = ToyVerifier(shape)
    engine = Engine(verifier, everything(shape))
    numbers = [engine.submit(Request([i], 8 - i)) for i in range(3)]
    events = drain(engine)
    assert [ids(events[number]) for number in numbers] == [text(shape, [i], 8 - i) for i in range(3)]
    assert [plan.width for plan in verifier.passes_run] == [4] * 6 + [2, 1]


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "empty"),
        ([1] * 61, "61 tokens but the context only 60"),
        ([1, 12], "token 12"),
        ([-1], "token -1"),
    ],
)
def test_an_impossible_prompt_is_refused_and_harms_nobody(prompt: list[int], words: str) -> None:
    shape = toy_shape()
    engine = plain_engine(ToyVerifier(shape))
    number = engine.submit(Request([1, 2], 5))
    engine.step()
    with pytest.raises(RequestError, match=words):
        engine.submit(Request(prompt, 5))
    assert ids(drain(engine)[number])[-4:] == text(shape, [1, 2], 5)[-4:]


def test_other_impossible_requests_are_refused() -> None:
    engine = plain_engine(ToyVerifier(toy_shape()))
    with pytest.raises(RequestError, match="max_tokens is -1"):
        Request([1], -1)
    with pytest.raises(RequestError, match="names token 99"):
        engine.submit(Request([1], 5, SamplingParameters(logit_bias=((99, 1.0),))))
    assert not engine.busy


@pytest.mark.parametrize("max_tokens", [None, 1, 2, 3, 4, 5, 6, 7])
def test_no_draft_runs_beyond_the_end(max_tokens: int | None) -> None:
    shape = toy_shape(context=20)
    verifier = ToyVerifier(shape)
    prompt = list(range(7))
    expected = text(shape, prompt, max_tokens)
    oracle = oracle_source(prompt, [*expected, 1, 1, 1, 1])
    events = list(plain_engine(verifier, oracle).generate(Request(prompt, max_tokens)))
    assert ids(events) == expected
    assert len(expected) == (max_tokens or 13)
    assert events[-1].finish is (FinishReason.LENGTH if max_tokens else FinishReason.CONTEXT)
    last = max(row.position for plan in verifier.passes_run for row in plan.rows)
    assert last == len(prompt) + len(expected) - 2


def test_a_prompt_that_fills_the_context_ends_at_once() -> None:
    verifier = ToyVerifier(toy_shape(context=20))
    (event,) = plain_engine(verifier).generate(Request([1] * 20))
    assert (event.tokens, event.finish) == ((), FinishReason.CONTEXT)
    assert not verifier.passes_run


def test_an_end_token_is_not_part_of_the_output() -> None:
    shape = toy_shape()
    whole = text(shape, [1, 2], 30)
    end = max(whole, key=whole.index)
    verifier = ToyVerifier(shape)
    engine = plain_engine(verifier, oracle_source([1, 2], whole))
    events = list(engine.generate(Request([1, 2], 30, end_ids=frozenset({end}))))
    assert ids(events) == whole[: whole.index(end)]
    assert events[-1].finish is FinishReason.STOP
    drafted = [row.token for plan in verifier.passes_run for row in plan.rows if row.kind is RowKind.DRAFT]
    assert drafted
    assert end not in drafted
    events = list(engine.generate(Request([1, 2], 30, end_ids=frozenset())))
    assert (ids(events), events[-1].finish) == (whole, FinishReason.LENGTH)


def test_cancelling_frees_the_region_and_keeps_its_prefix() -> None:
    shape = toy_shape()
    engine = plain_engine(ToyVerifier(shape))
    active, queued, third = (engine.submit(Request([1, 2, 3], 30)) for _ in range(3))
    for _ in range(5):
        engine.step()
    stopped = engine.cancel(active, FinishReason.STOP)
    assert stopped is not None
    assert (stopped.finish, stopped.statistics.output_tokens) == (FinishReason.STOP, 5)
    gone = engine.cancel(queued)
    assert gone is not None
    assert gone.finish is FinishReason.CANCELLED
    assert engine.cancel(active) is None
    assert engine.cancel(12345) is None
    events = drain(engine)
    assert set(events) == {third}
    assert ids(events[third]) == text(shape, [1, 2, 3], 30)
    assert events[third][-1].statistics.reused_tokens == 2


def test_leaving_the_generator_cancels() -> None:
    shape = toy_shape()
    engine = plain_engine(ToyVerifier(shape))
    stream = engine.generate(Request([1, 2], 30))
    next(stream)
    with pytest.raises(RequestError, match="busy"):
        next(engine.generate(Request([1], 3)))
    stream.close()  # type: ignore[attr-defined]
    assert not engine.busy
    assert ids(list(engine.generate(Request([1, 2], 6)))) == text(shape, [1, 2], 6)


class FaultyVerifier(ToyVerifier):
    """Its logits are not numbers for the sequence in region 0, from `fails_at` passes on."""

    fails_at = 10**9

    def forward(self, plan: PassPlan) -> NDArray[np.float16] | None:
        logits = super().forward(plan)
        if logits is not None and len(self.passes_run) > self.fails_at:
            for lane, row in enumerate(plan.rows):
                if row.slots[0].home is not None and row.slots[0].home < GLOBAL.region_slots:
                    logits[lane] = np.nan
        return logits


def test_logits_that_are_not_numbers_end_only_their_own_sequence() -> None:
    shape = toy_shape(sequences=2)
    verifier = FaultyVerifier(shape)
    verifier.fails_at = 3
    engine = plain_engine(verifier)
    bad, good = engine.submit(Request([1, 2], 20)), engine.submit(Request([3, 4], 20))
    events = drain(engine)
    assert events[bad][-1].finish is FinishReason.FAILED
    assert "not finite" in (events[bad][-1].error or "")
    assert ids(events[good]) == text(shape, [3, 4], 20)


class PoisonedVerifier(ToyVerifier):
    """The K/V of token 11 is not a number; while a slot holds such a value, no row's logits are numbers."""

    def forward(self, plan: PassPlan) -> NDArray[np.float16] | None:
        logits = super().forward(plan)
        for row in plan.rows:
            if row.token == 11 and row.slots[0].home is not None:
                self.state[-1][row.slots[0].home] = np.nan
        if logits is not None and any(tag != tag for tag in self.state[-1]):
            logits[:] = np.nan
        return logits


def test_what_a_failed_sequence_left_spoils_no_later_one() -> None:
    shape = toy_shape(sequences=2)
    engine = plain_engine(PoisonedVerifier(shape))
    (failed,) = engine.generate(Request([5, 11, 5], 20))
    assert failed.finish is FinishReason.FAILED
    assert ids(list(engine.generate(Request([3, 4], 3)))) == text(shape, [3, 4], 3)
    (failed,) = engine.generate(Request([5, 11, 5], 20))
    assert failed.statistics.reused_tokens == 0


class FailingOnce(ToyVerifier):
    """Raises in its first pass."""

    def forward(self, plan: PassPlan) -> NDArray[np.float16] | None:
        logits = super().forward(plan)
        if len(self.passes_run) == 1:
            raise OSError("interrupted")
        return logits


def test_a_step_that_failed_loses_no_end_of_another_sequence() -> None:
    shape = toy_shape(sequences=1)
    engine = plain_engine(FailingOnce(shape))
    full = engine.submit(Request([1] * shape.context))
    engine.submit(Request([1, 2], 3))
    with pytest.raises(OSError, match="interrupted"):
        engine.step()
    events = drain(engine)
    assert [event.finish for event in events[full]] == [FinishReason.CONTEXT]


class InterruptedVerifier(ToyVerifier):
    """Raises in every third pass, after it wrote to the state."""

    def forward(self, plan: PassPlan) -> NDArray[np.float16] | None:
        logits = super().forward(plan)
        if len(self.passes_run) % 3 == 0:
            raise OSError("interrupted")
        return logits


def test_a_step_that_failed_can_be_tried_again() -> None:
    shape = toy_shape(
        context=150, pools=(KVCacheGroupShape("global", 192, None), KVCacheGroupShape("local", 64, 32))
    )
    engine = plain_engine(InterruptedVerifier(shape), SourceOf(lambda *_: HostileSession(3, 12)))
    number = engine.submit(Request([1, 2, 3], 120))
    collected: list[Event] = []
    while engine.busy:
        try:
            collected += engine.step()
        except OSError:
            continue
    assert {event.sequence for event in collected} == {number}
    assert ids(collected) == text(shape, [1, 2, 3], 120)


class TornCopyVerifier(ToyVerifier):
    """Its first copy stops half-way."""

    torn = False

    def copy_slots(self, pool: int, source: int, target: int, count: int) -> None:
        if self.torn:
            super().copy_slots(pool, source, target, count)
        else:
            self.torn = True
            super().copy_slots(pool, source, target, count // 2)
            raise OSError("torn")


def test_a_region_is_not_trusted_after_a_torn_copy() -> None:
    shape = toy_shape(sequences=2)
    engine = plain_engine(TornCopyVerifier(shape))
    stem, old = [1, 2, 3, 4, 5, 6], [9, 8, 7, 6, 5, 4]
    keeper = engine.submit(Request(stem, 50))
    engine.step()
    engine.submit(Request(old, 1))
    while len(engine.step()) < 2:
        pass
    number = engine.submit(Request([*stem, 1], 5))
    with pytest.raises(OSError, match="torn"):
        engine.step()
    assert engine.cancel(number) is not None
    again = engine.submit(Request([*old, 1], 5))
    events = drain(engine)
    assert ids(events[again]) == text(shape, [*old, 1], 5)
    assert events[keeper][-1].finish is FinishReason.LENGTH


class GivingUpSampler(Sampler):
    """Has a grammar that cannot be followed, where the prompt begins with 9; `fails` says what fails."""

    fails = ""

    def _fail(self, where: str) -> None:
        if self.fails == where and self._prompt[0] == 9:
            raise AnespecError("the grammar takes too much")

    def accept(self, token: int) -> None:
        self._fail("accept")
        super().accept(token)

    def forced(self) -> tuple[int, ...]:
        self._fail("forced")
        return super().forced()

    @property
    def finished(self) -> bool:
        self._fail("finished")
        return super().finished


@pytest.mark.parametrize("where", ["accept", "forced", "finished"])
def test_a_grammar_that_cannot_be_followed_ends_its_own_sequence_alone(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(GivingUpSampler, "fails", where)
    monkeypatch.setattr(engine_module, "Sampler", GivingUpSampler)
    shape = toy_shape(sequences=2)
    engine = Engine(ToyVerifier(shape), everything(shape))
    bad = [engine.submit(Request([9, number], 8)) for number in range(3)]
    good = engine.submit(Request([1, 2], 8))
    events: list[Event] = []
    while engine.busy:
        events += engine.step()
    ends = {event.sequence: (event.finish, event.error) for event in events if event.finish is not None}
    assert [ends[number] for number in bad] == 3 * [(FinishReason.FAILED, "the grammar takes too much")]
    assert ends[good] == (FinishReason.LENGTH, None)
    text = [token.id for event in events if event.sequence == good for token in event.tokens]
    assert text == sequential_text(shape, 0, [1, 2], 8, SamplingParameters())
