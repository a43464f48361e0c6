"""Recurrent layers in the engine: runs end where chunks end, folds come once, prefixes go on at any place."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drafting import OracleSession, SourceByReference
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from toy import ToyVerifier, drain, everything, ids, prompt_rows, sequential_text, toy_shape

from anespec.manifests.verdicts import RunEnvironment
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Event, FinishReason, Request
from anespec.runtime.kv.saved_prefix import SavedPrefix, read_prefix, write_prefix
from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import (
    KVCacheGroupShape,
    PassPlan,
    RowKind,
    StateOverflowError,
    VerifierShape,
    begin_rows,
    run_rows,
)
from anespec.runtime.rows import chain_rows
from anespec.runtime.sampling import SamplingParameters
from anespec.runtime.speculation.pass_costs import PassCosts, WidthCost
from anespec.runtime.speculation.running_costs import RunningCosts

CHUNK = 8
GREEDY = SamplingParameters()
REPETITIVE = 9


def shape_of(sequences: int = 1, chunk: int = CHUNK, block: int = 4, context: int = 100) -> VerifierShape:
    """A hybrid: all positions, taps, and chunks."""
    pools = (
        KVCacheGroupShape("global", 128, None),
        KVCacheGroupShape("taps", 64, 4),
        KVCacheGroupShape("chunk", chunk, None, is_chunk=True),
    )
    return toy_shape(block=block, context=context, sequences=sequences, pools=pools)


def text_of(shape: VerifierShape, request: Request) -> list[int]:
    return sequential_text(shape, REPETITIVE, request.prompt, request.max_tokens, request.sampling)


def knowing(shape: VerifierShape, requests: Sequence[Request], wrong_each: int = 0) -> SourceByReference:
    """A source that knows the texts of requests, whose references are their numbers."""

    def make(number: str, prompt: Sequence[int]) -> OracleSession:
        request = requests[int(number)]
        return OracleSession([*request.prompt, *text_of(shape, request)], len(prompt), wrong_each)

    return SourceByReference(make)


def run(engine: Engine, prompt: Sequence[int], count: int = 12, seed: int = 0) -> list[Event]:
    """One request from beginning to end, whose text is the sequential one."""
    request = Request(tuple(prompt), count, GREEDY)
    number = engine.submit(request)
    events = drain(engine)[number]
    assert ids(events) == text_of(engine.shape, request)
    return events


def engine_of(shape: VerifierShape, verifier: ToyVerifier | None = None, **options: Any) -> Engine:
    return Engine(verifier or ToyVerifier(shape, REPETITIVE), everything(shape), **options)


PROMPT = tuple(int(token) for token in np.random.default_rng(3).integers(0, 12, 90))


@given(st.integers(1, 3), st.integers(0, 2), st.integers(0, 99), st.integers(1, 40))
def test_a_row_sees_its_chunk_and_runs_end_with_it(
    sequences: int, region: int, position: int, count: int
) -> None:
    home = SlotMapping.of(shape_of(sequences))
    region %= sequences
    slots = home.slots(region, position)[2]
    base, start = region * CHUNK, position - position % CHUNK
    assert slots.home == base + position % CHUNK
    assert slots.visible == (range(base, base + position - start + 1),)
    assert home.longest_run_from(position) == start + CHUNK - position
    for part in home.runs(range(position, position + count), 5):
        assert len({each // CHUNK for each in part}) == 1
        assert len(part) <= 5


@pytest.mark.parametrize("wrong_each", [0, 3])
@pytest.mark.parametrize("block", [2, 4, 8])
def test_drafts_are_accepted_and_end_where_a_chunk_ends(block: int, wrong_each: int) -> None:
    shape = shape_of(block=block)
    verifier = ToyVerifier(shape, REPETITIVE)
    request = Request(PROMPT[:11], 60, GREEDY, reference=(0,))
    engine = engine_of(shape, verifier, source=knowing(shape, [request], wrong_each))
    number = engine.submit(request)
    events = drain(engine)[number]
    assert ids(events) == text_of(shape, request)
    statistics = events[-1].statistics
    assert statistics.accepted >= (8 if wrong_each else 25)
    assert (statistics.proposed > statistics.accepted) == bool(wrong_each)
    assert verifier.folds == (11 + 60 - 2) // CHUNK
    for plan in verifier.passes_run:
        chunks = {row.position // CHUNK for row in plan.rows if row.kind is not RowKind.PAD}
        assert len(chunks) == 1
    ends = [
        row.kind for plan in verifier.passes_run for row in plan.rows if row.position % CHUNK == CHUNK - 1
    ]
    assert RowKind.DRAFT in ends


def test_a_prompt_is_folded_once_a_chunk_whatever_the_passes() -> None:
    for width in (1, 2, 4, 8, 16):
        shape = shape_of()
        verifier = ToyVerifier(shape, REPETITIVE)
        proven = replace(everything(shape), widths=tuple(sorted({4, width})))
        number = (engine := Engine(verifier, proven)).submit(Request(PROMPT[:33], 1, GREEDY))
        drain(engine)[number]
        assert verifier.folds == 4


@pytest.mark.parametrize("cut", range(1, 3 * CHUNK + 2))
def test_a_prefix_is_continued_from_every_place_of_a_chunk(cut: int) -> None:
    """In place, where nothing ran after it: all of it but the last token, if that must run again."""
    shape = shape_of()
    verifier = ToyVerifier(shape, REPETITIVE)
    engine = engine_of(shape, verifier)
    run(engine, PROMPT[:cut], 1)
    before = prompt_rows(verifier)
    events = run(engine, (*PROMPT[:cut], 1, 2, 3, 4))
    assert events[-1].statistics.reused_tokens == cut
    assert prompt_rows(verifier) - before == 4


@pytest.mark.parametrize("cut", range(1, 3 * CHUNK + 2))
def test_a_prefix_is_copied_from_every_place_of_a_chunk(cut: int) -> None:
    """To another region, while the first one goes on from there."""
    shape = shape_of(sequences=2)
    verifier = ToyVerifier(shape, REPETITIVE)
    engine = engine_of(shape, verifier)
    requests = [Request(PROMPT[:cut], 3 * CHUNK, GREEDY), Request((*PROMPT[:cut], 5, 6), 20, GREEDY)]
    first = engine.submit(requests[0])
    events: dict[int, list[Event]] = {}
    while engine._store.tokens(0)[:cut] != PROMPT[:cut]:
        for event in engine.step():
            events.setdefault(event.sequence, []).append(event)
    second = engine.submit(requests[1])
    for number, more in drain(engine).items():
        events.setdefault(number, []).extend(more)
    for number, request in zip((first, second), requests, strict=True):
        assert ids(events[number]) == text_of(shape, request)
    assert events[second][-1].statistics.reused_tokens == cut


@pytest.mark.parametrize("end", [*range(2 * CHUNK, 3 * CHUNK + 1)])
def test_after_a_long_answer_the_prompt_goes_on_from_what_was_kept(end: int) -> None:
    """The same prompt again, and prompts that leave it within its last chunk, need only what is new."""
    shape = shape_of()
    verifier = ToyVerifier(shape, REPETITIVE)
    engine = engine_of(shape, verifier)
    last = (end - 1) - (end - 1) % CHUNK
    run(engine, PROMPT[:end], 30)
    assert run(engine, PROMPT[:end], 30)[-1].statistics.reused_tokens == end - 1
    for shared in range(last, end):
        changed = (*PROMPT[:shared], (PROMPT[shared] + 1) % 12, 3)
        assert run(engine, changed, 30)[-1].statistics.reused_tokens == shared
        again = run(engine, (*PROMPT[:end], 7), 30)
        # The region's other tokens went with the changed prompt, but those of a whole pool are shared.
        assert again[-1].statistics.reused_tokens in (shared, end)
    before = (*PROMPT[: last - 1], (PROMPT[last - 1] + 1) % 12, 3)
    assert run(engine, before, 2)[-1].statistics.reused_tokens < last - 1 or last == 0


def test_nothing_is_kept_without_a_budget() -> None:
    shape = shape_of()
    engine = engine_of(shape, ring_bytes=0)
    run(engine, PROMPT[:20], 30)
    assert run(engine, PROMPT[:20], 4)[-1].statistics.reused_tokens == 0


def test_a_model_that_keeps_no_older_positions_goes_on_in_any_region() -> None:
    """Without a pool of all positions, what was kept of a prompt is all that its text needs."""
    pools = (KVCacheGroupShape("taps", 64, 4), KVCacheGroupShape("chunk", CHUNK, None, is_chunk=True))
    shape = toy_shape(context=100, sequences=1, pools=pools)
    engine = engine_of(shape)
    run(engine, PROMPT[:20], 30)
    run(engine, PROMPT[40:60], 30)
    assert run(engine, (*PROMPT[:20], 3), 4)[-1].statistics.reused_tokens == 20
    assert run(engine, PROMPT[40:60], 4)[-1].statistics.reused_tokens == 19


@pytest.mark.parametrize("count", [11, 16, 17, 23])
def test_several_answers_share_the_prefill_of_their_prompt(count: int) -> None:
    shape = shape_of(sequences=3)
    verifier = ToyVerifier(shape, REPETITIVE)
    engine = engine_of(shape, verifier)
    requests = [
        Request(PROMPT[:count], 20, SamplingParameters(temperature=1.0, seed=seed)) for seed in range(5)
    ]
    numbers = [engine.submit(request) for request in requests]
    events = drain(engine)
    for number, request in zip(numbers, requests, strict=True):
        assert ids(events[number]) == text_of(shape, request)
        # A block of the prompt is not waited for.
        assert number == numbers[0] or events[number][-1].statistics.reused_tokens >= count - shape.block


class FailingAfterFolds(ToyVerifier):
    """Fails once in the pass after each fold."""

    failed = 0

    def forward(self, plan: PassPlan) -> Any:
        if self.failed < self.folds:
            self.failed += 1
            raise OSError("hiccup")
        return super().forward(plan)


def test_a_pass_that_fails_is_tried_again_without_another_fold() -> None:
    shape = shape_of()
    verifier = FailingAfterFolds(shape, REPETITIVE)
    engine = engine_of(shape, verifier)
    request = Request(PROMPT[:30], 30, GREEDY)
    engine.submit(request)
    found: list[Event] = []
    while engine.busy:
        with contextlib.suppress(OSError):
            found += engine.step()
    assert ids(found) == text_of(shape, request)
    assert verifier.failed == verifier.folds == (30 + 30 - 2) // CHUNK


class Timed(ToyVerifier):
    """A pass takes a second, a fold a hundred."""

    now = 0.0

    def forward(self, plan: PassPlan) -> NDArray[np.float16] | None:
        self.now += 1
        return super().forward(plan)

    def fold(self, region: int) -> None:
        self.now += 100
        super().fold(region)


def test_folds_are_no_part_of_what_passes_cost() -> None:
    """A pass is not blamed for the fold before it, so one width is not for the folds of another."""

    class Noting(RunningCosts):
        def observe(self, width: int, span: int, seconds: float) -> None:
            seen.append(seconds)
            super().observe(width, span, seconds)

    shape, seen = shape_of(), list[float]()
    verifier = Timed(shape, REPETITIVE)
    costs = Noting(PassCosts.of([WidthCost(width, 1.0) for width in shape.widths]))
    engine = engine_of(shape, verifier, costs=costs, clock=lambda: verifier.now)
    run(engine, PROMPT[:20], 40)
    assert verifier.folds > 4
    assert len(seen) > 4 and set(seen) == {1.0}


class FailingInFolds(ToyVerifier):
    """The second and the fifth fold fail, after they have spoiled the state."""

    tried = 0

    def fold(self, region: int) -> None:
        self.tried += 1
        if self.tried in (2, 5):
            self.import_carried(region, [np.array([7], dtype=object)] * len(self.carried))
            raise OSError("hiccup")
        super().fold(region)


def test_where_a_fold_fails_the_sequence_is_prefilled_again() -> None:
    shape = shape_of(sequences=2, context=40)
    verifier = FailingInFolds(shape, REPETITIVE)
    engine = engine_of(shape, verifier)
    requests = [Request(PROMPT[:20], 3, GREEDY), Request(PROMPT[30:33], 20, GREEDY)]
    numbers = [engine.submit(request) for request in requests]
    events: dict[int, list[Event]] = {number: [] for number in numbers}
    failures = 0
    while engine.busy:
        try:
            for event in engine.step():
                events[event.sequence].append(event)
        except OSError:
            failures += 1
            assert failures < 50
    for number, request in zip(numbers, requests, strict=True):
        assert ids(events[number]) == text_of(shape, request)
    assert failures == 2


class Overflowing(ToyVerifier):
    """What the first region would carry leaves fp16's range in its second fold."""

    def fold(self, region: int) -> None:
        if region == 0 and self.stands(region) == {CHUNK}:
            raise StateOverflowError("what layer 2 remembers of the text left fp16's range")
        super().fold(region)


def test_a_state_that_overflows_ends_its_sequence_alone() -> None:
    shape = shape_of(sequences=2)
    verifier = Overflowing(shape, REPETITIVE)
    engine = engine_of(shape, verifier)
    requests = [Request(PROMPT[:4], 40, GREEDY), Request(PROMPT[30:37], 40, GREEDY)]
    numbers = [engine.submit(request) for request in requests]
    events = drain(engine)
    end = events[numbers[0]][-1]
    assert end.finish is FinishReason.FAILED
    assert end.error == "what layer 2 remembers of the text left fp16's range"
    assert 0 < len(ids(events[numbers[0]])) < 40
    assert ids(events[numbers[1]]) == text_of(shape, requests[1])
    assert engine._store.tokens(0) == ()
    assert verifier.export_carried(0)[0].item() == 0


HERE = RunEnvironment(backend="toy", library_version="1", machine="m", threads=1, artifact="a")


@pytest.mark.parametrize("count", [1, 7, 8, 9, 15, 16, 17])
def test_a_saved_prompt_goes_on_at_every_place_of_a_chunk(count: int) -> None:
    shape = shape_of(sequences=2)
    engine = engine_of(shape)
    run(engine, PROMPT[:count], 1)
    saved = engine.save_prefix(PROMPT[:count])
    assert saved is not None
    assert saved.first[2] == (count - 1) - (count - 1) % CHUNK
    other = ToyVerifier(shape, REPETITIVE)
    other.standing |= engine._verifier.standing  # type: ignore[attr-defined]
    other.origins |= engine._verifier.origins  # type: ignore[attr-defined]
    # The toy's tags are no fp16 numbers.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "isfinite", lambda array: np.ones(array.shape, bool))
        later = engine_of(shape, other)
        assert later.restore_prefix(saved)
        assert not later.restore_prefix(replace(saved, carried=()))
        assert not later.restore_prefix(replace(saved, carried=tuple(a[..., :0] for a in saved.carried)))
    assert run(later, (*PROMPT[:count], 9))[-1].statistics.reused_tokens == count


def test_a_file_keeps_carried_states(tmp_path: Path) -> None:
    carried: tuple[NDArray[np.float16], ...] = (
        np.arange(8, dtype=np.float16).reshape(1, 2, 1, 4),
        np.full((1, 1, 1, 3), -0.0, np.float16),
    )
    prefix = SavedPrefix((1, 2), (0,), ((np.ones((1, 1, 2, 4), np.float16),),), carried)
    assert prefix.bytes == 16 + 16 + 6
    write_prefix(tmp_path / "prompt.kv", prefix, HERE)
    again = read_prefix(tmp_path / "prompt.kv", HERE, 1 << 20)
    assert [array.tobytes() for array in again.carried] == [array.tobytes() for array in carried]
    assert [array.shape for array in again.carried] == [array.shape for array in carried]
    assert [array.tobytes() for array in again.values[0]] == [prefix.values[0][0].tobytes()]
    without = replace(prefix, carried=())
    write_prefix(tmp_path / "without.kv", without, HERE)
    assert b'"carried"' not in (tmp_path / "without.kv").read_bytes()
    assert read_prefix(tmp_path / "without.kv", HERE, 1 << 20).carried == ()


def test_rows_outside_an_engine_are_prepared_in_order() -> None:
    shape = shape_of()
    verifier = ToyVerifier(shape, REPETITIVE)
    home = SlotMapping.of(shape)
    logits = []
    for part in home.runs(range(20), 3):
        begin_rows(verifier, 0, part.start)
        rows = chain_rows(home, 0, part.start, RowKind.PROMPT, PROMPT[part.start : part.stop])
        logits.append(run_rows(verifier, rows, 4))
    assert verifier.folds == 2
    assert int(logits[-1][-1].argmax()) == sequential_text(shape, REPETITIVE, PROMPT[:20], 1, GREEDY)[0]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_conversations_give_the_sequential_texts(data: st.DataObject) -> None:
    """Turns that extend what came before, cut it short or change its end, over two regions."""
    shape = shape_of(sequences=2, chunk=data.draw(st.sampled_from([4, 8, 16])))
    engine = engine_of(shape, ring_bytes=data.draw(st.sampled_from([0, 400, 1 << 20])))
    history = [*PROMPT[: data.draw(st.integers(1, 30))]]
    for _ in range(data.draw(st.integers(1, 6))):
        events = run(engine, history, data.draw(st.integers(1, 20)))
        whole = [*history, *ids(events)]
        keep = data.draw(st.integers(0, len(whole)))
        history = [*whole[:keep], *data.draw(st.lists(st.integers(0, 11), min_size=1, max_size=5))][:70]
