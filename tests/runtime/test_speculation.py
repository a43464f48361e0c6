"""A draft source is asked, believed in nothing, left alone where it fails, and asked again."""

import threading
import time
from collections.abc import Callable, Sequence

import pytest
from drafting import HostileSession, OracleSession, SenselessSession, SourceOf, oracle_source
from patience import PATIENCE
from stepping import Clock
from toy import ToyVerifier, everything, ids, sequential_text, toy_shape
from waiting import until

import anespec.runtime.speculation.sessions as draft_sessions
from anespec.runtime.drafters import Draft, DraftCost, DraftSession, DraftSource
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.proposals import LATE_FLOOR
from anespec.runtime.engine.requests import Event, Request
from anespec.runtime.passes import KVCacheGroupShape, RowKind
from anespec.runtime.sampling import SamplingParameters
from anespec.runtime.speculation.pass_costs import PassCosts, WidthCost
from anespec.runtime.speculation.policy import MAX_DRAFT_LEN
from anespec.runtime.speculation.sessions import BackOff

SHAPE = toy_shape(sequences=3)


def text(prompt: Sequence[int], count: int) -> list[int]:
    return sequential_text(SHAPE, 0, prompt, count, SamplingParameters())


def engine_with(source: DraftSource, clock: Clock | None = None) -> tuple[Engine, ToyVerifier]:
    verifier = ToyVerifier(SHAPE)
    return Engine(verifier, everything(SHAPE), source, clock=clock or Clock()), verifier


def drafted_passes(verifier: ToyVerifier) -> list[bool]:
    return [any(row.kind is RowKind.DRAFT for row in plan.rows) for plan in verifier.passes_run]


class Failing(OracleSession):
    """Raises in proposals until it was opened often enough."""

    fails = True

    def propose(self, budget: int) -> Draft:
        if self.fails:
            raise RuntimeError("not yet")
        return super().propose(budget)


def test_a_source_that_fails_is_asked_again_after_two_to_the_k_passes_and_then_trusted() -> None:
    whole = [1, 2, *text([1, 2], 50)]
    opened: list[Failing] = []

    def make(tenant: str, prompt: Sequence[int]) -> DraftSession:
        opened.append(Failing(whole, len(prompt)))
        opened[-1].fails = len(opened) < 4
        return opened[-1]

    engine, verifier = engine_with(SourceOf(make))
    events = list(engine.generate(Request([1, 2], 40)))
    assert ids(events) == text([1, 2], 40)
    # Asked in passes 1, 3, 6 and 11: left alone for 1, 2 and 4 passes between.
    assert drafted_passes(verifier)[:11] == [False] * 10 + [True]
    assert [session.known for session in opened[:3]] == [2, 4, 7]
    assert [session.closed for session in opened] == [1] * 4
    statistics = events[-1].statistics
    assert (statistics.draft_failures, statistics.drafter_error) == (3, "RuntimeError('not yet')")
    assert statistics.accepted > 15


def test_one_session_that_fails_costs_the_others_nothing() -> None:
    prompts = {"good": [1, 2], "bad": [3, 4], "fine": [5, 6]}

    def make(tenant: str, prompt: Sequence[int]) -> DraftSession:
        whole = [*prompts[tenant], *text(prompts[tenant], 50)]
        return Failing(whole, len(prompt)) if tenant == "bad" else OracleSession(whole, len(prompt))

    engine, _ = engine_with(SourceOf(make))
    numbers = {
        tenant: engine.submit(Request(prompt, 40, tenant=tenant)) for tenant, prompt in prompts.items()
    }
    events: dict[int, list[Event]] = {number: [] for number in numbers.values()}
    while engine.busy:
        for event in engine.step():
            events[event.sequence].append(event)
    for tenant, number in numbers.items():
        assert ids(events[number]) == text(prompts[tenant], 40)
        statistics = events[number][-1].statistics
        assert (statistics.draft_failures > 1) == (tenant == "bad")
        assert (statistics.accepted > 5) == (tenant != "bad")


@pytest.mark.parametrize("make", [SenselessSession, lambda: HostileSession(1, 12, raises=True)])
def test_nonsense_is_named_and_changes_nothing(make: type[SenselessSession]) -> None:
    engine, _ = engine_with(SourceOf(lambda *_: make()))
    events = list(engine.generate(Request([1, 2], 50)))
    assert ids(events) == text([1, 2], 50)
    assert events[-1].statistics.drafter_error is not None


def test_a_source_that_cannot_open_costs_nothing() -> None:
    def make(tenant: str, prompt: Sequence[int]) -> DraftSession:
        raise MemoryError("no room")

    engine, _ = engine_with(SourceOf(make))
    events = list(engine.generate(Request([1, 2], 20)))
    assert ids(events) == text([1, 2], 20)
    assert events[-1].statistics.drafter_error == "MemoryError('no room')"


def test_a_source_that_is_late_is_left_alone_and_comes_back() -> None:
    clock, whole = Clock(), [1, 2, *text([1, 2], 50)]
    late = [True, False, True, True, True, False]

    def dawdle() -> None:
        if late and late.pop(0):
            clock.now += 1.1 * LATE_FLOOR

    source = SourceOf(lambda _, prompt: OracleSession(whole, len(prompt)), dawdle)
    engine, verifier = engine_with(source, clock)
    events = list(engine.generate(Request([1, 2], 40)))
    assert ids(events) == text([1, 2], 40)
    # Once late is forgiven, the second time in a row it is left alone for a pass, the third for two.
    drafted = [True, True, True, False, False, False, False, False, True]
    assert drafted_passes(verifier)[:9] == drafted
    (end,) = (event for event in events if event.finish is not None)
    assert end.statistics.draft_failures == 2
    assert "took" in (events[-1].statistics.drafter_error or "")


def test_a_source_on_a_thread_of_its_own_is_waited_for_only_so_long() -> None:
    stuck, whole = threading.Event(), [1, 2, *text([1, 2], 50)]
    calls: list[str] = []

    def stick() -> None:
        calls.append(threading.current_thread().name)
        if len(calls) == 1:
            stuck.wait(PATIENCE)

    source = SourceOf(lambda _, prompt: OracleSession(whole, len(prompt)), stick, off_thread=True)
    engine, _ = engine_with(source)
    stream = engine.generate(Request([1, 2], 40))
    events = [next(stream) for _ in range(6)]
    # It still hangs in its first call, so nobody has asked it again, nor closed what it works on.
    assert len(calls) == 1
    first = source.sessions[0]
    assert isinstance(first, OracleSession)
    assert not first.closed
    stuck.set()
    until(lambda: first.closed)
    events += stream
    assert ids(events) == text([1, 2], 40)
    assert len(calls) > 1
    assert all(name.startswith("drafts") for name in calls)
    assert events[-1].statistics.accepted > 10
    engine.close()


def test_sessions_see_what_was_committed_and_the_tops_they_ask_for() -> None:
    whole = [1, 2, *text([1, 2], 30)]
    source = SourceOf(lambda _, prompt: OracleSession(whole, len(prompt), wrong_each=3, wants_top=2))
    engine, verifier = engine_with(source)
    events = list(engine.generate(Request([1, 2], 30)))
    (session,) = source.sessions
    assert isinstance(session, OracleSession)
    # Greedy: every committed token is the likeliest of its row.
    assert session.tops == ids(events) == whole[2:]
    # Rows behind a wrong guess ran as well, and say what would have followed it.
    assert session.after_miss
    assert all([token] == text(path, 1) for path, token in session.after_miss)
    assert not session.faults
    assert session.known == len(whole)
    assert session.closed == 1
    assert any(outcome.accepted == 2 for outcome in session.outcomes)
    assert {need.top for plan in verifier.passes_run for need in plan.wanted.values()} == {2}


def test_owner_and_reference_reach_the_source_and_a_request_may_do_without() -> None:
    source = oracle_source([1, 2], text([1, 2], 9))
    engine, _ = engine_with(source)
    (*_, end) = engine.generate(Request([1, 2], 9, speculate=False))
    assert (source.opened, end.statistics.proposed) == ([], 0)
    (*_, end) = engine.generate(Request([1, 2], 9, tenant="me"))
    assert source.opened == [("me", (1, 2))]
    (count,) = end.statistics.by_source
    assert (count.source, count.proposed, count.accepted) == (
        "oracle",
        end.statistics.proposed,
        end.statistics.accepted,
    )


def test_sessions_are_closed_however_a_sequence_ends() -> None:
    source = oracle_source([1, 2], text([1, 2], 50))
    engine, _ = engine_with(source)
    cancelled, left = engine.submit(Request([1, 2], 50)), engine.submit(Request([1, 2], 50))
    engine.step()
    engine.step()
    assert engine.cancel(cancelled) is not None
    assert left in {event.sequence for event in engine.step()}
    engine.close()
    assert [session.closed for session in source.sessions if isinstance(session, OracleSession)] == [1, 1]


def test_back_off_doubles_and_ends() -> None:
    back_off = BackOff()
    waits = []
    now = 0
    for _ in range(14):
        back_off.fail(now)
        waits.append(back_off.until - now - 1)
        now = back_off.until
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024, 1024]
    back_off.succeed()
    back_off.fail(now)
    assert back_off.until == now + 2


def test_a_gate_keeps_drafts_from_prompts_that_do_not_repeat() -> None:
    repeating, plain = (1, 2, 3, 1, 2, 3, 1, 2, 3), tuple(range(9))
    opened = []
    for gate in (0.0, 0.3, 0.99):
        source = oracle_source(repeating, text(repeating, 10))
        engine = Engine(ToyVerifier(SHAPE), everything(SHAPE), source, repetition_filter=gate)
        for prompt in (repeating, plain):
            assert ids(list(engine.generate(Request(prompt, 10)))) == text(prompt, 10)
        opened.append([prompt for _, prompt in source.opened])
    assert opened == [[repeating, plain], [repeating], []]


class Asked(OracleSession):
    """Notes how many tokens it was asked for; wrong from a token on."""

    def __init__(self, whole: Sequence[int], known: int, right_to: int) -> None:
        super().__init__(whole, known)
        self.right_to = right_to
        self.asked: list[int] = []

    def propose(self, budget: int) -> Draft:
        self.asked.append(budget)
        draft = super().propose(budget)
        right = max(0, self.right_to - self.known)
        wrong = tuple(token ^ 1 for token in draft.tokens[right:])
        return Draft((*draft.tokens[:right], *wrong), draft.probabilities, draft.source, draft.order)


def test_a_draft_that_was_right_to_its_end_is_followed_by_one_twice_as_long() -> None:
    shape = toy_shape(t_max=16, context=200, pools=(KVCacheGroupShape("global", 256, None),))
    whole = sequential_text(shape, 0, [1, 2], 150, SamplingParameters())
    sessions: list[Asked] = []

    def make(tenant: str, prompt: Sequence[int]) -> DraftSession:
        sessions.append(Asked([1, 2, *whole], len(prompt), right_to=60))
        return sessions[-1]

    known = PassCosts.of([WidthCost(width, 1.0) for width in shape.widths])
    engine = Engine(ToyVerifier(shape), everything(shape), SourceOf(make), costs=known)
    assert ids(list(engine.generate(Request([1, 2], 120)))) == whole[:120]
    asked = sessions[0].asked
    assert asked[:3] == [3, 6, 12]
    assert max(asked) == MAX_DRAFT_LEN
    assert set(asked[-20:-4]) == {3}, "as many as a block has, where guesses are wrong"


class Aside(SourceOf):
    """Opens sessions of long texts on another thread, when it may."""

    def __init__(self, make: Callable[[str, Sequence[int]], DraftSession], may: threading.Event) -> None:
        super().__init__(make)
        self.cost = DraftCost(opens_aside=True)
        self.may = may

    def open(
        self, tenant: str, prompt: Sequence[int], reference: Sequence[int] | None = None
    ) -> DraftSession:
        assert self.may.wait(PATIENCE)
        return super().open(tenant, prompt, reference)


def test_passes_do_not_wait_for_a_long_text_to_be_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_sessions, "LONG_TEXT", 10)
    prompt = list(range(12))
    whole = [*prompt, *text(prompt, 40)]
    may = threading.Event()
    source = Aside(lambda _, known: OracleSession(whole, len(known)), may)
    engine, verifier = engine_with(source)
    engine.submit(Request(prompt, 40))
    found = [event for _ in range(6) for event in engine.step()]
    assert len(ids(found)) == 6, "a token in each pass, that of the prompt too"
    assert not any(drafted_passes(verifier))
    may.set()
    while engine.busy:
        found += engine.step()
        time.sleep(0.001)
    assert ids(found) == whole[12:]
    assert any(drafted_passes(verifier))
    (fault,) = source.faults
    assert fault.startswith("0 rows for "), "what was committed meanwhile was told at once, without its rows"
    engine.close()
    (session,) = source.sessions
    assert session.closed == 1


def test_a_session_that_nobody_waits_for_any_more_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_sessions, "LONG_TEXT", 10)
    may = threading.Event()
    source = Aside(lambda _, known: OracleSession([], len(known)), may)
    engine, _ = engine_with(source)
    number = engine.submit(Request(list(range(12)), 40))
    engine.step()
    engine.cancel(number)
    may.set()
    engine.close()
    assert [session.closed for session in source.sessions] == [1]
