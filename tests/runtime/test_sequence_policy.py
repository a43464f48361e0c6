"""Asking takes little of the time where it brings nothing, and is never left out where it pays."""

from collections.abc import Sequence

import pytest
from drafting import OracleSession, SourceOf
from hypothesis import given
from hypothesis import strategies as st
from stepping import Clock
from toy import ToyVerifier, everything, ids, toy_shape

from anespec.runtime.drafters import Draft, DraftSession, Outcome, TopKLogits
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import Request
from anespec.runtime.passes import KVCacheGroupShape, PassPlan, RowKind
from anespec.runtime.speculation.pass_costs import PassCosts, WidthCost
from anespec.runtime.speculation.policy import MAX_DRAFT_LEN
from anespec.runtime.speculation.sequence_policy import IDLE_SHARE, SequencePolicy, SharedExperience

SHAPE = toy_shape(context=1000, vocabulary=300, pools=(KVCacheGroupShape("global", 1024, None),))
PASS = 1e-3
COSTS = PassCosts.of([WidthCost(width, PASS) for width in SHAPE.widths])


def begun(shared: SharedExperience | None = None) -> SequencePolicy:
    return SequencePolicy(shared or SharedExperience(), 3)


@given(st.floats(1e-6, 1.0), st.floats(1e-4, 1.0), st.integers(100, 2000))
def test_asking_in_vain_takes_a_small_share_of_the_time(took: float, token: float, passes: int) -> None:
    policy, asks = begun(), 0
    for _ in range(passes):
        if policy.may_propose():
            asks += 1
            policy.charge(took, 0, token)
    assert asks * took <= token + 2 * took + 1.1 * IDLE_SHARE * passes * token or took <= IDLE_SHARE * token
    assert asks >= passes / (2 + took / (IDLE_SHARE * token)), "it is asked again"


@given(st.floats(1e-6, 1e-3), st.lists(st.integers(1, 4), min_size=1, max_size=200))
def test_a_session_that_is_always_right_is_asked_always(took: float, accepted: list[int]) -> None:
    policy = begun()
    for count in accepted:
        assert policy.may_propose()
        policy.charge(took, count, 2e-3)


def test_a_right_guess_after_a_rest_is_followed_by_another_ask_at_once() -> None:
    policy = begun()
    while policy.may_propose():
        policy.charge(3e-4, 0, PASS)
    while not policy.may_propose():
        pass
    policy.charge(3e-4, 1, PASS)
    assert policy.may_propose()


def resting(policy: SequencePolicy) -> SequencePolicy:
    """The policy after asks in vain, when it has just begun to rest."""
    while policy.may_propose():
        policy.charge(7e-4, 0, PASS)
    return policy


def test_a_text_that_repeats_itself_ends_a_rest() -> None:
    policy = resting(begun())
    line = list(range(9))
    for number in range(20):
        policy.watch([number + 50])
        assert not policy.may_propose(), "nothing was repeated yet"
    policy.watch(line)
    policy.watch(line)
    assert policy.may_propose()


def test_what_is_repeated_in_vain_is_asked_for_ever_more_rarely() -> None:
    """The source is never right, however often the text repeats itself."""
    policy, asked = resting(begun()), 0
    for number in range(3000):
        policy.watch([number % 11])
        if policy.may_propose():
            asked += 1
            policy.charge(7e-4, 0, PASS)
    assert asked * 7e-4 < 0.02 * 3000 * PASS


def test_it_is_asked_as_long_as_right_guesses_pay_for_all_asks() -> None:
    policy = begun()
    for number in range(300):
        assert policy.may_propose(), number
        policy.charge(3e-4, number % 3 == 2, PASS)


def test_it_rests_where_a_right_guess_now_and_then_does_not_pay_for_all_asks() -> None:
    """A guess in six is right, and six asks take 2.4 tokens' time."""
    policy, asks = begun(), 0
    for _ in range(600):
        if policy.may_propose():
            policy.charge(4e-4, asks % 6 == 5, PASS)
            asks += 1
    assert asks * 4e-4 - (asks // 6) * PASS < 0.02 * 600 * PASS


def test_where_no_sequence_s_asks_paid_the_next_one_s_may_take_less() -> None:
    shared = SharedExperience()
    spent: list[float] = []
    for _ in range(30):
        policy, own = begun(shared), 0
        for _ in range(48):
            if policy.may_propose():
                policy.charge(1e-4, 0, PASS)
                own += 1
        spent.append(own * 1e-4)
    assert spent[0] > 0.9 * PASS
    assert spent[-1] < 0.02 * 48 * PASS
    assert shared.lost == PASS, "no more is handed on than one right guess makes up for"
    begun(shared).charge(1e-4, 2, PASS)
    assert shared.lost == 0, "what pays again is asked again"


def test_an_ask_that_was_disturbed_is_no_dear_one() -> None:
    policy = begun()
    policy.charge(3e-5, 0, PASS)
    policy.charge(1.0, 0, PASS)
    assert policy.may_propose()


def test_drafts_get_twice_as_long_as_what_was_right_of_the_last() -> None:
    policy = begun()
    seen = []
    for known, right in ((3, 3), (6, 6), (0, 0), (12, 12), (12, 5), (10, 10), (4, 4), (4, 0), (1, 1)):
        draft = Draft((1,) * known, (0.5,) * known, "s")
        assert policy.learn(draft, [1] * right + [2] * (known - right)) == right
        seen.append(policy.draft_len)
    assert seen == [6, 12, 12, 24, 10, 20, 20, 3, 3]


@pytest.mark.parametrize(
    ("tokens", "committed", "right"),
    [
        ((1, 2, 3), (1, 2, 3, 4), 3),
        ((1, 2, 3), (1, 9), 1),
        ((1, 2, 3), (1,), 1),
        ((5, 2), (1, 2), 0),
        ((), (1,), 0),
        ((1,), (), 0),
    ],
)
def test_tokens_are_right_up_to_the_first_wrong_one(
    tokens: tuple[int, ...], committed: tuple[int, ...], right: int
) -> None:
    policy = begun()
    draft = Draft(tokens, (0.9,) * len(tokens), "s")
    assert policy.learn(draft, committed) == right
    if not committed:
        assert policy.estimated(draft) == draft, "what is not known yet says nothing"


class Slow(OracleSession):
    """Takes its time, and notes how often it was asked and whether it saw rows."""

    def __init__(self, clock: Clock, whole: Sequence[int], known: int, right: bool) -> None:
        super().__init__(whole, known, wrong_each=0 if right else 1, wants_top=3)
        self.clock, self.asked = clock, 0

    def propose(self, budget: int) -> Draft:
        self.asked += 1
        self.clock.now += 0.4 * PASS
        return super().propose(budget)

    def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
        if len(rows):
            super().observe(committed, outcome, rows)
        else:
            self.known += len(committed)


class TimedVerifier(ToyVerifier):
    """A toy whose passes take a millisecond, and which counts what it was asked for."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(SHAPE)
        self.clock, self.tops = clock, 0

    def forward(self, plan: PassPlan) -> object:
        self.clock.now += PASS
        self.tops += any(need.top for need in plan.wanted.values())
        return super().forward(plan)


def run(right: bool | None) -> tuple[float, list[int], TimedVerifier, list[Slow]]:
    """The seconds of 600 tokens, which they are, what ran them, and the sessions; None drafts nothing."""
    clock = Clock()
    verifier = TimedVerifier(clock)
    sessions: list[Slow] = []
    plain: list[int] = [] if right is None else run(None)[1]

    def opened(tenant: str, prompt: Sequence[int]) -> DraftSession:
        sessions.append(Slow(clock, [*prompt, *plain], len(prompt), bool(right)))
        return sessions[-1]

    source = None if right is None else SourceOf(opened)
    engine = Engine(verifier, everything(SHAPE), source, costs=COSTS, clock=clock)
    began = clock.now
    found = ids(list(engine.generate(Request(tuple(range(40)), 600))))
    return clock.now - began, found, verifier, sessions


@pytest.mark.slow
def test_a_slow_source_costs_little_where_it_is_wrong_and_brings_much_where_it_is_right() -> None:
    plain, tokens, _, _ = run(None)
    wrong, same, verifier, (session,) = run(False)
    assert same == tokens
    assert wrong <= 1.02 * plain
    assert 5 <= session.asked < 20
    assert session.known == 640, "what it was not told while it rested, it was told at last"
    assert verifier.tops <= session.asked + 1, "beside the prompt's last, only rows of an ask tell their tops"
    assert not session.faults
    right, same, verifier, (session,) = run(True)
    assert same == tokens
    assert right < 0.5 * plain
    drafted = [any(row.kind is RowKind.DRAFT for row in plan.rows) for plan in verifier.passes_run]
    assert sum(drafted) > 600 / (MAX_DRAFT_LEN + 1), "every pass behind the prompt has drafts"
    assert session.known == 640


def test_without_costs_every_pass_asks() -> None:
    clock = Clock()
    sessions: list[Slow] = []

    def opened(tenant: str, prompt: Sequence[int]) -> DraftSession:
        sessions.append(Slow(clock, range(1000), len(prompt), False))
        return sessions[-1]

    engine = Engine(ToyVerifier(SHAPE), everything(SHAPE), SourceOf(opened), clock=clock)
    list(engine.generate(Request((1, 2, 3), 50)))
    assert sessions[0].asked >= 40


@pytest.mark.parametrize("failing", ["propose", "observe"])
def test_a_session_that_fails_while_it_is_caught_up_costs_its_turn(failing: str) -> None:
    """One that fails at what it is told after a rest is opened anew with all of the text."""
    clock = Clock()
    opened_with: list[int] = []

    class Failing(Slow):
        def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
            if failing == "observe" and not len(rows) and len(opened_with) == 1:
                raise RuntimeError("too much at once")
            super().observe(committed, outcome, rows)

        def propose(self, budget: int) -> Draft:
            if failing == "propose" and self.asked > 2 and len(opened_with) == 1:
                raise RuntimeError("not now")
            return super().propose(budget)

    def opened(tenant: str, prompt: Sequence[int]) -> DraftSession:
        opened_with.append(len(prompt))
        return Failing(clock, [0] * 1000, len(prompt), False)

    verifier = TimedVerifier(clock)
    engine = Engine(verifier, everything(SHAPE), SourceOf(opened), costs=COSTS, clock=clock)
    events = list(engine.generate(Request(tuple(range(40)), 300)))
    assert ids(events) == run(None)[1][:300]
    assert len(opened_with) == 2
    assert events[-1].statistics.draft_failures == 1


def test_a_session_that_rested_is_told_its_text_in_order_whatever_fills_the_passes() -> None:
    """Prompts of others leave no lane for drafts now and then, just while a session has rested."""
    clock = Clock()
    shape = toy_shape(block=2, t_max=4, context=1000, sequences=3, vocabulary=300, pools=SHAPE.pools)
    costs = PassCosts.of([WidthCost(width, PASS) for width in shape.widths])
    heard: list[list[int]] = []
    sessions: list[Slow] = []

    class ChildLine(Slow):
        def observe(self, committed: Sequence[int], outcome: Outcome, rows: TopKLogits) -> None:
            self.whole.extend(committed)

        def close(self) -> None:
            heard.append(self.whole)

    def opened(tenant: str, prompt: Sequence[int]) -> DraftSession:
        sessions.append(ChildLine(clock, prompt, len(prompt), False))
        return sessions[-1]

    class Waiting(TimedVerifier):
        def __init__(self) -> None:
            ToyVerifier.__init__(self, shape)
            self.clock, self.tops = clock, 0

    engine = Engine(Waiting(), everything(shape), SourceOf(opened), costs=costs, clock=clock)
    texts: dict[int, list[int]] = {}
    for step in range(400):
        if step % 40 == 0 and step < 320:
            prompt = [step % 7, *range(step, step + 50)]
            texts[engine.submit(Request(tuple(token % 300 for token in prompt), 60))] = [
                token % 300 for token in prompt
            ]
        for event in engine.step():
            texts[event.sequence] += [token.id for token in event.tokens]
    assert not engine.busy
    assert sorted(heard) == sorted(texts.values())
    assert sum(session.asked for session in sessions) < 400, "they rested"
