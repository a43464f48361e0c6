"""Invariance cases: every token once and in order, whatever the cut, and no slot written twice in a pass."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_verifier import VOCABULARY, NumpyVerifier, shape_of

from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import ALL_LOGITS, LogitsRequest, RowKind
from anespec.validate.exactness.case_runner import CaseRunner
from anespec.validate.exactness.invariance_cases import (
    InvarianceCase,
    Probe,
    at_spans,
    cut,
    in_region,
    one_row_a_pass,
    speculated,
    wanting,
    with_another_sequence,
    with_made_up_pads,
    with_random_pads,
)

probes = st.builds(
    Probe,
    past=st.just(()),
    start=st.integers(0, 30),
    tokens=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12).map(tuple),
)
widths = st.integers(1, 8)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Probe, InvarianceCase, int]:
    probe, width = draw(probes), draw(widths)
    rng = np.random.default_rng(draw(st.integers(0, 5)))
    sizes = draw(st.lists(st.integers(1, width), min_size=1, max_size=4))
    case = draw(
        st.sampled_from(
            [
                one_row_a_pass(probe, width, width - 1),
                cut(probe, sizes, width),
                speculated(probe, [size - 1 for size in sizes], width, VOCABULARY, rng),
            ]
        )
    )
    others = [case, with_random_pads(case, probe, VOCABULARY, rng), in_region(case, 1)]
    others += [with_another_sequence(case, 1, VOCABULARY, rng), with_made_up_pads(case)]
    others += [at_spans(case, (64,)), wanting(case, {0: LogitsRequest(best=True)}, "the first wanted")]
    return probe, draw(st.sampled_from(others)), width


@given(cases())
def test_every_token_is_recorded_once_in_order(drawn: tuple[Probe, InvarianceCase, int]) -> None:
    probe, case, width = drawn
    recorded = [row for planned in case.passes for row in planned.rows if row.recorded]
    assert [row.position for row in recorded] == list(probe.positions)
    assert tuple(row.token for row in recorded) == probe.tokens
    assert all(planned.width == width >= len(planned.rows) for planned in case.passes)


@given(cases())
def test_rows_of_a_pass_keep_the_promises_of_a_block(drawn: tuple[Probe, InvarianceCase, int]) -> None:
    _, case, _ = drawn
    shape = shape_of(sequences=2)
    region_map = SlotMapping.of(shape)
    for planned in case.passes:
        plan = planned.plan(shape, region_map)
        written = [row.slots[0].home for row in plan.rows if row.slots[0].home is not None]
        assert written
        assert len(written) == len(set(written))
        assert all(0 <= lane < len(plan.rows) for lane in plan.wanted)
        for row in plan.rows:
            assert row.slots[0].visible
            assert (row.slots[0].home is None) == (row.kind is RowKind.PAD)


@given(probes, widths, st.integers(0, 9))
def test_a_wrong_draft_is_wrong(probe: Probe, width: int, seed: int) -> None:
    case = speculated(probe, [0], width, VOCABULARY, np.random.default_rng(seed))
    truth = dict(zip(probe.positions, probe.tokens, strict=True))
    drafts = [row for planned in case.passes for row in planned.rows if row.kind is RowKind.DRAFT]
    assert all(not row.recorded for row in drafts)
    assert all(truth.get(row.position) != row.token for row in drafts)


def test_only_rows_that_are_recorded_are_wanted() -> None:
    probe = Probe((), 3, (1, 2, 3))
    case = wanting(one_row_a_pass(probe, 4, lane=2), dict.fromkeys(range(4), ALL_LOGITS), "all wanted")
    assert [list(planned.wanted or {}) for planned in case.passes] == [[2], [2], [2]]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 60), st.integers(0, 40), st.sampled_from([None, 20]))
def test_the_past_is_made_of_real_values_up_to_the_start(start: int, past: int, window: int | None) -> None:
    verifier = NumpyVerifier(shape_of(sequences=2, window=window))
    probe = Probe(tuple(range(min(past, start))), start, (1, 2))
    CaseRunner(verifier).prepare(probe, region=1)
    filled = verifier.keys[0].any(axis=1)
    if min(past, start):
        assert filled[128 : 128 + start].all()
    assert not filled[:128].any()
    assert not filled[128 + start :].any()


def test_stale_slots_are_filled_and_the_past_is_left_alone() -> None:
    verifier = NumpyVerifier(shape_of(sequences=2))
    runner, probe = CaseRunner(verifier), Probe(tuple(range(9)), 20, (1, 2))
    runner.prepare(probe)
    before = [array.copy() for array in verifier.arrays(0)]
    runner.fill_stale(probe, np.random.default_rng(0))
    for old, new in zip(before, verifier.arrays(0), strict=True):
        assert np.array_equal(old[:20], new[:20])
        assert new[20:].all()
        assert np.abs(new).max() <= 2 * np.abs(old).max()


def test_a_ring_s_slots_out_of_sight_are_stale() -> None:
    verifier = NumpyVerifier(shape_of(window=20))
    runner, probe = CaseRunner(verifier), Probe(tuple(range(9)), 70, (1, 2))
    runner.prepare(probe)
    before = [array.copy() for array in verifier.arrays(1)]
    runner.fill_stale(probe, np.random.default_rng(0))
    seen = [position % 64 for position in range(70 - 19, 70)]
    for old, new in zip(before, verifier.arrays(1), strict=True):
        changed = (old != new).any(axis=1)
        assert not changed[seen].any()
        assert np.delete(changed, seen).all()


def test_restore_brings_back_what_a_case_overwrote() -> None:
    verifier = NumpyVerifier(shape_of(window=20))
    runner, probe = CaseRunner(verifier), Probe(tuple(range(9)), 70, (1, 2, 3))
    runner.prepare(probe)
    arrays = [*verifier.keys, *verifier.values]
    before = [array.copy() for array in arrays]
    runner.run(speculated(probe, [0], 4, VOCABULARY, np.random.default_rng(0)), probe)
    assert not all(np.array_equal(*pair) for pair in zip(before, arrays, strict=True))
    runner.restore()
    assert all(np.array_equal(*pair) for pair in zip(before, arrays, strict=True))
