"""Rows are spent where they bring most tokens per second, and nobody waits long for another's."""

from itertools import accumulate
from operator import mul

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from slow import slow_but
from toy import GLOBAL, ToyVerifier, drain, everything, ids, toy_shape

from anespec.runtime.drafters import Draft
from anespec.runtime.drafters.lookup import LookupSource
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.planner import Planner, RowDemand
from anespec.runtime.engine.requests import Request
from anespec.runtime.passes import KVCacheGroupShape, PassPlan, RowKind
from anespec.runtime.speculation.cost_measurement import LONG_PASS_SECONDS, ROUNDS, measure_pass_costs
from anespec.runtime.speculation.pass_costs import DRAFT_ROW_SECONDS, PassCosts, WidthCost
from anespec.runtime.speculation.policy import (
    DRAFT_DELAY,
    MAX_DRAFT_LEN,
    PROMPT_DELAY,
    DraftPolicy,
    repetition,
)
from anespec.runtime.speculation.running_costs import RunningCosts

WIDTHS = (1, 2, 4, 8, 16, 32, 64)
LLAMA_CPP = {1: 28.0, 2: 45.0, 4: 70.0, 8: 90.0, 16: 170.0, 32: 330.0, 64: 650.0}
"""Milliseconds of a pass, of which the design has those of 1, 4 and 8 rows; the others continue them."""
FLAT_TO_EIGHT = {1: 27.0, 2: 27.0, 4: 27.0, 8: 27.0, 16: 35.0, 32: 51.0, 64: 90.0}


def costs(milliseconds: dict[int, float], per_slot: float = 0.0, change: float = 0.0) -> PassCosts:
    widths = [WidthCost(width, each / 1e3, per_slot) for width, each in milliseconds.items()]
    return PassCosts.of(widths, change)


prices = st.lists(st.floats(0.0, 3.0), min_size=len(WIDTHS), max_size=len(WIDTHS)).map(
    lambda steps: PassCosts.of([WidthCost(width, 1 + sum(steps[: i + 1])) for i, width in enumerate(WIDTHS)])
)
probabilities = st.lists(st.floats(0.01, 1.0), max_size=20)
proposals = st.lists(probabilities.map(lambda found: drafted(*found)), max_size=4)


def drafted(*probabilities: float) -> Draft:
    return Draft((0,) * len(probabilities), probabilities)


@given(prices, probabilities, st.integers(1, 8))
def test_no_other_number_of_drafts_brings_more_tokens_per_second(
    known: PassCosts, found: list[float], scheduled: int
) -> None:
    policy = DraftPolicy(4, WIDTHS, known)
    paths = sorted(found, reverse=True)

    def rate(count: int) -> float:
        seconds = known.seconds(policy.width(scheduled + count), 0) + DRAFT_ROW_SECONDS * count
        return (scheduled + sum(paths[:count])) / seconds

    count = sum(policy.choose([drafted(each) for each in found], scheduled, len(found), scheduled))
    assert rate(count) >= max(map(rate, range(len(found) + 1))) - 1e-9


@given(prices, proposals, st.integers(1, 40), st.integers(0, 24), st.none() | st.sampled_from(WIDTHS))
def test_no_more_drafts_run_than_were_proposed_and_allowed(
    known: PassCosts, found: list[Draft], scheduled: int, max_rows: int, last: int | None
) -> None:
    for cost_model in (known, None):
        policy = DraftPolicy(4, WIDTHS, cost_model)
        if last is not None:
            policy.ran(last)
        lengths = policy.choose(found, scheduled, max_rows, scheduled)
        assert all(0 <= length <= len(draft.tokens) for length, draft in zip(lengths, found, strict=True))
        assert sum(lengths) <= max_rows
        if cost_model is None:
            assert sum(lengths) == min(max_rows, sum(len(draft.tokens) for draft in found))


@pytest.mark.slow
@given(prices, st.lists(proposals, min_size=1, max_size=30), st.floats(0.0, 2.0))
@example(
    known=PassCosts.of(
        [WidthCost(*each) for each in zip(WIDTHS, (2.0, 3.0, 5.0, 6.0, 6.0, 6.0, 6.0), strict=True)]
    ),
    passes=[[drafted(1.0, 1.0, 1.0, 1.0)], [drafted(0.5, 0.5, 0.5, 1.0)]],
    change=2.0,
)
def test_drafts_are_never_estimated_to_lose_more_than_changes_of_width_took(
    known: PassCosts, passes: list[list[Draft]], change: float
) -> None:
    """Where the last width is kept, what is forgone by it is less than the change that it saves."""
    policy = DraftPolicy(4, WIDTHS, PassCosts(known.widths, change))
    forgone = took = 0.0
    last = None
    for found in passes:
        lengths = policy.choose(found, 1, 40, 1.0)
        paths = [accumulate(draft.probabilities[:n], mul) for draft, n in zip(found, lengths, strict=True)]
        tokens = 1.0 + sum(map(sum, paths))
        width = policy.width(1 + sum(lengths))
        seconds = known.seconds(width, 0, sum(lengths))
        forgone += max(0.0, seconds - tokens * known.seconds(policy.width(1), 0))
        policy.ran(width)
        took += change * (last is not None and last != width)
        last = width
    assert forgone <= took + change + 1e-9


@given(prices, st.integers(1, 12))
def test_nobody_waits_long_for_another_s_prompt_or_drafts(known: PassCosts, waiting: int) -> None:
    policy = DraftPolicy(4, WIDTHS, known)
    alone = known.seconds(policy.width(waiting), 0)
    rows = policy.max_prompt_rows(waiting, 0)
    assert rows >= 4
    width = policy.width(waiting + rows)
    assert rows == 4 or known.seconds(width, 0) <= PROMPT_DELAY * alone
    if waiting > 1:
        most = policy.width(waiting + policy.max_draft_rows(waiting, waiting, 0))
        assert known.seconds(most, 0) <= DRAFT_DELAY * alone
    assert policy.max_prompt_rows(0, 0) == WIDTHS[-1], "where nobody waits, prompts take all"


def chosen(policy: DraftPolicy, *probabilities: float, span: int = 0) -> int:
    """How many tokens of a draft run, whose probabilities these are, each given those before it."""
    (count,) = policy.choose([drafted(*probabilities)], 1, len(probabilities), 1.0, span)
    return count


def test_where_every_row_is_free_drafts_fill_the_pass() -> None:
    free = DraftPolicy(4, (1, 2, 4), costs({1: 60.0, 2: 59.0, 4: 58.0}))
    assert chosen(free, *[0.01] * 3) == 3
    wide = DraftPolicy(4, WIDTHS, costs(FLAT_TO_EIGHT))
    assert chosen(wide, 0.01, *[1.0] * (MAX_DRAFT_LEN - 1)) == 7, "eight rows cost what one does"
    assert chosen(wide, *[0.9] * MAX_DRAFT_LEN) == MAX_DRAFT_LEN
    assert wide.max_draft_rows(1, 1, 0) == MAX_DRAFT_LEN


def test_where_rows_cost_drafts_must_be_good() -> None:
    dear = DraftPolicy(4, WIDTHS, costs(LLAMA_CPP))
    assert chosen(dear, 0.5, 0.5, 0.4) == 0
    assert chosen(dear, 0.7) == 1
    assert chosen(dear, *[0.95] * 7) == 7


def test_far_looks_make_rows_dearer() -> None:
    policy = DraftPolicy(4, (1, 4), PassCosts.of([WidthCost(1, 1.0, 0.0), WidthCost(4, 1.0, 0.001)]))
    assert chosen(policy, 0.5, span=256) == 1
    assert chosen(policy, 0.5, span=2048) == 0


def test_another_width_is_taken_once_it_would_have_paid() -> None:
    known = PassCosts.of([WidthCost(width, 1 + width / 100) for width in WIDTHS], change=0.2)
    policy = DraftPolicy(4, WIDTHS, known)
    policy.ran(1)
    assert [chosen(policy, 0.1) for _ in range(3)] == [0, 0, 1], "each saves 0.08"
    policy.ran(2)
    assert chosen(policy, 0.1) == 1, "as wide as the last, it changes nothing"
    policy.ran(1)
    assert [chosen(policy, 0.1) for _ in range(3)] == [0, 0, 1], "what was forgone before counts no more"
    policy.ran(1)
    assert chosen(policy, 0.4) == 1, "it pays at once"
    policy.ran(64)
    assert chosen(policy) == 0
    assert policy.choose([drafted(0.4)] * 70, 63, 70, 63.0) == [1, *[0] * 69]


def test_a_width_that_others_are_weighed_against_is_timed_again() -> None:
    running = RunningCosts(costs(dict.fromkeys(WIDTHS, 1.0)))
    policy = DraftPolicy(4, WIDTHS, running)
    for _ in range(100):
        assert chosen(policy, 0.9) == (0 if running.overdue(1) else 1)
        running.observe(2, 0, 1e-3)
    assert running.overdue(1)


def test_a_prompt_s_repetition_is_the_share_of_its_3_grams_that_came_before() -> None:
    assert repetition([1, 2, 3]) == 0
    assert repetition([]) == 0
    assert repetition(range(50)) == 0
    assert repetition([1, 2, 3, 1, 2, 3]) == 1 - 3 / 4
    assert repetition([7] * 12) == 1 - 1 / 10


@given(st.lists(st.integers(0, 3), max_size=20), st.floats(0.0, 1.0))
def test_a_repetition_filter_keeps_drafts_from_prompts_that_repeat_less(
    prompt: list[int], share: float
) -> None:
    policy = DraftPolicy(4, WIDTHS, repetition_filter=share)
    assert policy.drafts_for(prompt) == (repetition(prompt) >= share)


def test_a_width_in_whose_place_a_wider_one_is_clearly_cheaper_is_not_run() -> None:
    known = PassCosts.of([WidthCost(4, 0.058), WidthCost(1, 0.3), WidthCost(2, 0.06), WidthCost(8, 0.09)])
    assert [cost.width for cost in known.widths] == [1, 2, 4, 8]
    assert known.usable((1, 2, 4, 8)) == (2, 4, 8), "a little dearer may be chance"
    assert known.usable((1, 8)) == (8,)
    verifier = TimedVerifier(costs({1: 300, 2: 290, 4: 58, 8: 90, 16: 95, 32: 99, 64: 120}))
    engine = Engine(verifier, everything(verifier.shape), costs=verifier.known)
    list(engine.generate(Request(tuple(range(40)), 20)))
    assert {plan.width for plan in verifier.passes_run} == {4, 64}


class TimedVerifier(ToyVerifier):
    """A toy whose passes take a told time on a clock of its own, and more after one of another width."""

    def __init__(self, known: PassCosts, repetitive: int = 0, sequences: int = 1) -> None:
        super().__init__(
            toy_shape(
                t_max=64,
                context=1000,
                sequences=sequences,
                vocabulary=300,
                pools=(KVCacheGroupShape("global", 1024, None),),
            ),
            repetitive,
        )
        self.known = known
        self.now, self.last = 0.0, 0

    def forward(self, plan: PassPlan) -> object:
        self.now += self.known.seconds(plan.width, plan.spans[0])
        self.now += self.known.change * (plan.width != self.last)
        self.last = plan.width
        return super().forward(plan)

    def time(self) -> float:
        return self.now


def seconds(known: PassCosts, repetitive: int, source: LookupSource | None) -> tuple[float, list[int], int]:
    """What 600 tokens take, which ones they are, and how many drafts came true."""
    verifier = TimedVerifier(known, repetitive)
    engine = Engine(verifier, everything(verifier.shape), source, costs=known, clock=verifier.time)
    events = list(engine.generate(Request(tuple(range(40)), 600)))
    return verifier.now, ids(events), engine.counts.accepted


@pytest.mark.slow
@pytest.mark.parametrize("change", slow_but([0.0, 0.01], 0.01))
@pytest.mark.parametrize("milliseconds", [LLAMA_CPP, FLAT_TO_EIGHT])
def test_guessing_never_costs_two_percent_where_nothing_repeats(
    milliseconds: dict[int, float], change: float
) -> None:
    known = costs(milliseconds, change=change)
    plain, tokens, _ = seconds(known, 0, None)
    took, same, _ = seconds(known, 0, LookupSource())
    assert same == tokens
    assert took <= 1.02 * plain


@pytest.mark.slow
@pytest.mark.parametrize(("milliseconds", "gain"), [(LLAMA_CPP, 1.15), (FLAT_TO_EIGHT, 1.5)])
def test_guessing_pays_where_text_repeats(milliseconds: dict[int, float], gain: float) -> None:
    known = costs(milliseconds)
    plain, tokens, _ = seconds(known, 12, None)
    took, same, accepted = seconds(known, 12, LookupSource())
    assert same == tokens
    assert accepted > 100
    assert plain > gain * took


def test_no_pass_of_one_who_waits_is_long_while_prompts_come_in() -> None:
    known = costs(FLAT_TO_EIGHT)
    verifier = TimedVerifier(known, sequences=2)
    engine = Engine(verifier, everything(verifier.shape), costs=known)
    engine.submit(Request((1, 2, 3), 200))
    engine.step()
    verifier.passes_run.clear()
    engine.submit(Request(tuple(range(250)), 2))
    drain(engine)
    shared = [
        plan.width
        for plan in verifier.passes_run
        if len({row.kind for row in plan.rows} & {RowKind.PROMPT, RowKind.CARRY}) == 2
    ]
    assert shared
    assert max(shared) == 32, "51 ms, which is less than twice 27"
    proven = everything(verifier.shape)
    alone = Planner(verifier.shape, proven, DraftPolicy(verifier.shape.block, proven.widths, known))
    assert sum(alone.share([RowDemand(200, True)]).rows) == 64


def test_costs_are_measured_on_every_width_and_grow_with_the_span() -> None:
    shape = toy_shape(
        t_max=16, context=600, pools=(KVCacheGroupShape("global", 1024, None),), partial_spans=True
    )
    truth = PassCosts.of([WidthCost(width, width / 100, width * 1e-6) for width in shape.widths], 0.004)

    class Slow(TimedVerifier):
        def __init__(self) -> None:
            ToyVerifier.__init__(self, shape)
            self.known, self.now, self.last = truth, 0.0, 0

    verifier = Slow()
    told: list[tuple[int, int]] = []
    found = measure_pass_costs(
        verifier, everything(shape), lambda done, of: told.append((done, of)), verifier.time
    )
    passes = ROUNDS * (len(shape.widths) + 2)
    assert told == [(done, passes) for done in range(passes)]
    for width in shape.widths:
        for span in (256, 1024):
            assert found.seconds(width, span) == pytest.approx(truth.seconds(width, span), rel=0.02)
    assert found.change == pytest.approx(truth.change)


@pytest.mark.parametrize("usual", [0.01, 0.5])
def test_a_process_s_first_pass_of_a_width_is_no_change_of_width(usual: float) -> None:
    """It may be compiled then."""

    class Compiling(TimedVerifier):
        def forward(self, plan: PassPlan) -> object:
            self.now += 0 if plan.width in {each.width for each in self.passes_run} else 120
            return super().forward(plan)

    known = costs(dict.fromkeys(WIDTHS, 1e3 * usual), change=0.002)
    verifier = Compiling(known)
    found = measure_pass_costs(verifier, everything(verifier.shape), clock=verifier.time)
    assert found.change == pytest.approx(0.002 if usual < LONG_PASS_SECONDS else 0.0)
    assert [cost.seconds for cost in found.widths] == pytest.approx([usual] * len(WIDTHS))


def test_without_partial_spans_the_span_costs_nothing_more() -> None:
    shape = toy_shape(pools=(GLOBAL,))
    verifier = ToyVerifier(shape)
    ticks = iter(range(10_000))
    found = measure_pass_costs(verifier, everything(shape), clock=lambda: float(next(ticks)))
    assert {cost.per_slot for cost in found.widths} == {0.0}


def test_costs_are_measured_with_different_tokens() -> None:
    """Rows of one token would use the same experts of a mixture, and cost too little."""

    class Recording(TimedVerifier):
        def forward(self, plan: PassPlan) -> object:
            tokens = [row.token for row in plan.rows]
            assert all(0 <= token < self.shape.vocabulary for token in tokens)
            different.append((len(set(tokens)), min(len(tokens), self.shape.vocabulary)))
            return super().forward(plan)

    different: list[tuple[int, int]] = []
    verifier = Recording(costs(dict.fromkeys(WIDTHS, 5.0)))
    measure_pass_costs(verifier, everything(verifier.shape), clock=verifier.time)
    assert max(count for count, _ in different) > 3
    assert all(count > rows / 2 for count, rows in different)
