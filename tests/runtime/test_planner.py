"""Scheduled rows are shared fairly, drafts by path probability; a pass is no larger than it must be."""

from dataclasses import replace
from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from toy import everything, side_by_side, toy_shape

from anespec.runtime.drafters import Draft
from anespec.runtime.engine.planner import (
    PlannedRow,
    Planner,
    RowDemand,
    Run,
    fair_shares,
    tenant_shares,
)
from anespec.runtime.passes import BEST_LOGIT, KVCacheGroupShape, RowKind, VerifierShape
from anespec.runtime.proven import Proven
from anespec.runtime.speculation.policy import MAX_PROMPT_ROWS, likeliest

POOLS = (KVCacheGroupShape("global", 1024, None), KVCacheGroupShape("local", 192, 100))
SHAPE = toy_shape(block=4, t_max=256, context=1024, sequences=3, pools=POOLS, partial_spans=True)
drafts = st.lists(
    st.lists(st.sampled_from([0.1, 0.3, 0.5, 0.9, 1.0]), max_size=4).map(
        lambda chances: Draft((0,) * len(chances), tuple(chances))
    ),
    max_size=4,
)
demands = st.lists(
    st.builds(RowDemand, st.integers(1, 300), st.booleans(), st.sampled_from("ab")), min_size=1, max_size=6
)
widths = st.lists(st.sampled_from([1, 2, 8, 16, 64, 256]), max_size=6).map(
    lambda more: tuple(sorted({4, *more}))
)


def planner(*widths: int, shape: VerifierShape = SHAPE) -> Planner:
    return Planner(shape, Proven(speculate=True, widths=widths, spans=shape.spans))


@given(demands, widths)
def test_everyone_gets_a_row_before_anyone_gets_two(
    demands: list[RowDemand], widths: tuple[int, ...]
) -> None:
    plan = planner(*widths)
    shares = plan.share(demands)
    most = [min(demand.rows, plan.longest_run_from(demand.position)) for demand in demands]
    assert all(0 <= share <= limit for share, limit in zip(shares.rows, most, strict=True))
    scheduled = sum(shares.rows)
    assert 1 <= scheduled <= widths[-1]
    assert scheduled + shares.lanes_left in widths
    assert shares.lanes_left == 0 or scheduled + shares.lanes_left == next(
        width for width in widths if width >= max(4, scheduled)
    )
    if max(shares.rows) > 1:
        assert min(shares.rows) == 1 or all(shares.rows)
    assert all(shares.rows[: widths[-1]])


@given(demands, widths)
def test_no_lane_that_somebody_wants_stays_empty(demands: list[RowDemand], widths: tuple[int, ...]) -> None:
    plan = planner(*widths)
    shares = plan.share(demands)
    hungry = [
        demand
        for demand, share in zip(demands, shares.rows, strict=True)
        if share < min(demand.rows, plan.longest_run_from(demand.position))
    ]
    prompt_rows = sum(s for d, s in zip(demands, shares.rows, strict=True) if d.is_prompt)
    if hungry:
        is_capped = not all(demand.is_prompt for demand in demands) and prompt_rows == MAX_PROMPT_ROWS
        assert sum(shares.rows) == widths[-1] or (is_capped and all(demand.is_prompt for demand in hungry))


def test_prompts_share_fairly_and_leave_a_waiting_token_its_row() -> None:
    decoding, prompt = RowDemand(1, False), RowDemand(1000, True)
    assert planner(4, 64).share([prompt, prompt, decoding]).rows == (32, 31, 1)
    assert planner(4, 256).share([prompt, prompt, decoding]).rows == (64, 64, 1)
    assert planner(4, 256).share([prompt, RowDemand(10, True)]).rows == (93, 10)
    assert planner(4).share([decoding, prompt]).rows == (1, 3)


@given(st.lists(st.integers(0, 40), max_size=7), st.integers(0, 150))
def test_fair_shares_differ_only_where_less_is_wanted(wants: list[int], capacity: int) -> None:
    shares = fair_shares(wants, capacity)
    assert sum(shares) == min(capacity, sum(wants))
    hungry = [share for share, want in zip(shares, wants, strict=True) if share < want]
    if hungry:
        assert max(shares) - min(hungry) <= 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40)), max_size=9), st.integers(0, 150))
def test_owners_share_fairly_however_many_sequences_they_have(
    asked: list[tuple[str, int]], capacity: int
) -> None:
    tenants, wants = [tenant for tenant, _ in asked], [want for _, want in asked]
    shares = tenant_shares(tenants, wants, capacity)
    assert sum(shares) == min(capacity, sum(wants))
    assert all(share <= want for share, want in zip(shares, wants, strict=True))

    def of(tenant: str, counts: list[int]) -> list[int]:
        return [count for name, count in zip(tenants, counts, strict=True) if name == tenant]

    total = {tenant: sum(of(tenant, shares)) for tenant in set(tenants)}
    hungry = [tenant for tenant in total if total[tenant] < sum(of(tenant, wants))]
    assert all(max(total.values()) - total[tenant] <= 1 for tenant in hungry)
    for tenant in total:
        assert of(tenant, shares) == fair_shares(of(tenant, wants), total[tenant])


def test_many_prompts_of_an_owner_do_not_hold_up_another_s() -> None:
    many, one, decoding = RowDemand(1000, True, "a"), RowDemand(1000, True, "b"), RowDemand(1, False, "c")
    assert planner(4, 64).share([many, many, many, one]).rows == (11, 11, 11, 31)
    assert planner(4, 64).share([many, many, many, one, decoding]).rows[3:] == (30, 1)


@given(drafts, st.integers(0, 8))
def test_drafts_are_shared_so_that_most_tokens_are_expected(proposed: list[Draft], budget: int) -> None:
    def expected(shares: tuple[int, ...]) -> float:
        total = 0.0
        for draft, share in zip(proposed, shares, strict=True):
            path = 1.0
            for chance in draft.probabilities[:share]:
                path *= chance
                total += path
        return total

    found = likeliest(proposed, budget)
    paths = [token.probability for token in found]
    assert paths == sorted(paths, reverse=True)
    shares = tuple(sum(token.draft == i for token in found) for i in range(len(proposed)))
    assert sum(shares) == min(budget, sum(len(draft.tokens) for draft in proposed))
    choices = product(*(range(len(draft.tokens) + 1) for draft in proposed))
    best = max(expected(choice) for choice in choices if sum(choice) <= budget)
    assert abs(expected(shares) - best) < 1e-9


def run_of(region: int, position: int, rows: int) -> Run:
    return Run(region, position, (PlannedRow(RowKind.CARRY, 5, BEST_LOGIT),) * rows)


def test_a_pass_is_as_narrow_and_looks_as_far_as_its_rows_need() -> None:
    plan = planner(1, 2, 4, 8)
    one = plan.lay_out([run_of(0, 200, 1)]).plan
    assert (one.width, one.spans) == (1, (256, 256))
    three = plan.lay_out([run_of(0, 254, 3)])
    assert (three.plan.width, three.plan.spans, three.lanes) == (4, (384, 256), (0,))
    two = plan.lay_out([run_of(0, 10, 2), run_of(1, 300, 3)])
    assert (two.plan.width, two.plan.spans, two.lanes) == (8, (1536, 384), (0, 2))
    assert list(two.plan.wanted) == [0, 1, 2, 3, 4]


def test_without_proof_a_pass_looks_at_every_slot() -> None:
    plan = Planner(SHAPE, Proven(speculate=True, widths=(4,)))
    assert plan.lay_out([run_of(0, 10, 1)]).plan.spans == (3072, 576)
    whole = toy_shape(sequences=2)
    assert Planner(whole, everything(whole)).lay_out([run_of(0, 1, 1)]).plan.spans == (128,)


@given(demands, widths)
def test_a_pass_that_is_written_side_by_side_is_one_sequences(
    demands: list[RowDemand], widths: tuple[int, ...]
) -> None:
    plan = planner(*widths, shape=side_by_side(SHAPE))
    shares = plan.share(demands)
    assert shares.rows[0] >= 1
    assert not any(shares.rows[1:])
    assert 1 <= sum(shares.rows) + shares.lanes_left <= widths[-1]


def test_no_run_reaches_over_a_rings_end_and_spans_hold_what_pads_write() -> None:
    """The ring of tokens has 384 slots, for a window of 100 and passes of 256 rows; 256 spare ones follow."""
    shape = side_by_side(SHAPE)
    assert [(pool.region_slots, pool.token_slots) for pool in shape.pools] == [(1280, 1024), (640, 384)]
    plan = planner(4, 64, shape=shape)
    assert plan.longest_run_from(384 + 380) == 4
    assert plan.share([RowDemand(10, False, "", 380)]).rows == (4,)
    run = Run(0, 250, tuple(PlannedRow(RowKind.PROMPT, 1, None) for _ in range(5)))
    laid_out = plan.lay_out([run]).plan
    assert (laid_out.width, laid_out.spans) == (64, (384, 384))
    assert plan.written_to(run, laid_out) == 250 + 64


def test_a_span_that_was_not_proven_gives_way_to_the_next_one_that_was() -> None:
    shape = toy_shape(
        block=4, context=1024, pools=(KVCacheGroupShape("global", 1024, None),), partial_spans=True
    )
    assert shape.spans == ((256, 384, 512, 768, 1024),)
    run = Run(0, 300, (PlannedRow(RowKind.CARRY, 1, None),))
    proven = Proven(speculate=True, widths=(4,), spans=((256, 512, 1024),))
    assert Planner(shape, proven).lay_out([run]).plan.spans == (512,)
    assert Planner(shape, replace(proven, spans=shape.spans)).lay_out([run]).plan.spans == (384,)
    assert Planner(shape, replace(proven, spans=())).lay_out([run]).plan.spans == (1024,)
