"""The exactness gate: green on a verifier that keeps the law, red by the right name on each that does not."""

from dataclasses import replace

import numpy as np
import pytest
from elsewhere import copied
from numpy_verifier import (
    BaseDependent,
    BestIsOff,
    Flattened,
    HeadOfWantedRows,
    LaneVariant,
    LogitsNaN,
    MaskOffByOne,
    NarrowDependent,
    NeighbourDependent,
    NumpyVerifier,
    OneSpanDependent,
    OneWidthDependent,
    OwnPadsDisturb,
    PadsWriteNaN,
    PartitionDependent,
    SkipsUnwanted,
    SpanDependent,
    SpanTooShort,
    StaleNaN,
    SwappedPairOffLane0,
    Wavering,
    WidthDependent,
    WrongSlot,
    shape_of,
)

from anespec.manifests.verdicts import (
    REQUIRED_FOR_SPECULATION,
    ExactnessVerdict,
    Invariance,
    RunEnvironment,
    Status,
)
from anespec.runtime.passes import PassPlan, VerifierShape
from anespec.system.errors import ExactnessGateError
from anespec.validate.exactness.effort import Form
from anespec.validate.exactness.gate import exactness_gate, require_exactness

HERE = RunEnvironment(backend="numpy", library_version="2", machine="any", threads=1, artifact="0")
LANE, NEIGHBOURS, STALE, PARTITION, WANTED, REPEAT, WIDTH, SPAN, REGION = Invariance
ALL = set(Invariance)
TWO_POOLS = shape_of(t_max=32, context=320, window=250, ring=320, sequences=2, partial_spans=True)
"""Two regions and pools, each with three spans below the whole."""


def gate(verifier: NumpyVerifier, form: Form = "quick") -> ExactnessVerdict:
    return exactness_gate(verifier, HERE, form=form, elsewhere=copied(verifier))


def unproven(verdict: ExactnessVerdict) -> set[Invariance]:
    return {invariance for invariance in Invariance if not verdict.proves(invariance)}


@pytest.mark.fast_only("spans in full")
@pytest.mark.parametrize(
    ("shape", "form"),
    [
        (shape_of(sequences=2), "full"),
        (shape_of(sequences=3, window=20), "quick"),
        (shape_of(sequences=2, context=256, window=40), "full"),
        (shape_of(block=2, t_max=2, sequences=2, context=64), "full"),
        (shape_of(block=8, t_max=16, sequences=2, window=7), "quick"),
        (shape_of(context=320, sequences=2, window=200, ring=320, partial_spans=True), "quick"),
        (shape_of(context=640, window=20, partial_spans=True), "quick"),
        (shape_of(context=320, window=250, ring=256, partial_spans=True), "full"),
    ],
    ids=[
        "two regions",
        "three regions and a ring",
        "a case that runs round a ring",
        "one width",
        "eight lanes and a ring",
        "spans of two pools over two regions",
        "spans of one pool of two",
        "spans in full",
    ],
)
def test_a_lawful_verifier_is_green(shape: VerifierShape, form: Form) -> None:
    verdict = gate(NumpyVerifier(shape), form)
    assert unproven(verdict) == ({REGION} if shape.sequences == 1 else set()) | (
        set() if shape.partial_spans else {SPAN}
    )
    assert verdict.proven_widths == shape.widths
    assert verdict.proven_spans == tuple(shape.span_steps(pool) for pool in range(len(shape.pools)))
    assert verdict.allows_speculation
    require_exactness(verdict)


def test_what_cannot_be_compared_is_not_proven() -> None:
    verdict = gate(NumpyVerifier(shape_of(block=4, t_min=4, t_max=4, sequences=1)))
    assert unproven(verdict) == {REGION, WIDTH, SPAN}
    assert verdict.proven_widths == (4,)
    assert not any(v.unequal for v in verdict.invariances)
    assert verdict.allows_speculation


def test_a_row_that_is_always_alone_has_nothing_to_depend_on() -> None:
    assert gate(NumpyVerifier(shape_of(block=1))).allows_speculation


@pytest.mark.parametrize("context", [4, 5, 9])
def test_a_tiny_context_is_measured_as_far_as_it_goes(context: int) -> None:
    verdict = gate(NumpyVerifier(shape_of(context=context)))
    assert not any(v.unequal for v in verdict.invariances)


@pytest.mark.parametrize(
    ("faulty", "red", "green"),
    [
        (Flattened, {LANE, NEIGHBOURS, PARTITION}, {REGION}),
        (WrongSlot, {LANE, PARTITION}, {REGION, STALE}),
        (MaskOffByOne, {NEIGHBOURS, STALE, PARTITION}, {LANE}),
        (StaleNaN, {STALE}, ALL - {STALE, SPAN}),
        (PadsWriteNaN, {LANE, STALE}, set()),
        (SwappedPairOffLane0, {LANE, PARTITION}, {REGION, STALE}),
        (LaneVariant, {LANE, PARTITION}, {REGION, STALE}),
        (PartitionDependent, {PARTITION}, {LANE, STALE, REGION}),
        (NeighbourDependent, {NEIGHBOURS, PARTITION}, {STALE, REGION}),
        (BaseDependent, {REGION}, ALL - {REGION, SPAN}),
        (WidthDependent, {WIDTH}, ALL - {WIDTH, SPAN}),
        (Wavering, {LANE, REPEAT}, set()),
        (LogitsNaN, {LANE}, set()),
    ],
)
def test_a_fault_turns_the_right_invariance_red(
    faulty: type[NumpyVerifier], red: set[Invariance], green: set[Invariance]
) -> None:
    verdict = gate(faulty(shape_of(sequences=2)))
    assert red <= unproven(verdict)
    assert not green & unproven(verdict)
    required = red & set(REQUIRED_FOR_SPECULATION)
    assert verdict.allows_speculation is not bool(required)
    if required:
        with pytest.raises(ExactnessGateError, match=min(required)):
            require_exactness(verdict)
    else:
        require_exactness(verdict)


@pytest.mark.parametrize(
    ("faulty", "red"),
    [
        (WidthDependent, WIDTH),
        (OneWidthDependent, WIDTH),
        (NarrowDependent, WIDTH),
        (SpanDependent, SPAN),
        (OneSpanDependent, SPAN),
        (SpanTooShort, SPAN),
        (HeadOfWantedRows, WANTED),
        (SkipsUnwanted, WANTED),
        (BestIsOff, WANTED),
        (OwnPadsDisturb, NEIGHBOURS),
    ],
)
def test_one_fault_turns_only_its_own_invariance_red(faulty: type[NumpyVerifier], red: Invariance) -> None:
    assert unproven(gate(faulty(TWO_POOLS))) == {red}


@pytest.mark.slow
def test_the_full_form_tells_faults_apart_too() -> None:
    for faulty, red in ((SpanTooShort, SPAN), (HeadOfWantedRows, WANTED)):
        assert unproven(gate(faulty(TWO_POOLS), "full")) == {red}


@pytest.mark.fast_only(
    "OneWidthDependent-proven1-quick",
    "WidthDependent-proven3-quick",
    "NarrowDependent-proven2-quick",
    "NumpyVerifier-proven0-quick",
    "WidthDependent-proven3-full",
)
@pytest.mark.parametrize("form", ["quick", "full"])
@pytest.mark.parametrize(
    ("faulty", "proven"),
    [
        (NumpyVerifier, (1, 2, 4, 8, 16, 32)),
        (OneWidthDependent, (1, 2, 4, 8, 32)),
        (NarrowDependent, (1, 4, 8, 16, 32)),
        (WidthDependent, (4,)),
    ],
)
def test_the_widths_that_are_equal_are_told_apart(
    faulty: type[NumpyVerifier], proven: tuple[int, ...], form: Form
) -> None:
    assert gate(faulty(shape_of(t_max=32)), form).proven_widths == proven


@pytest.mark.slow
@pytest.mark.parametrize("form", ["quick", "full"])
def test_the_spans_that_are_equal_are_told_apart(form: Form) -> None:
    ringed, steps = replace(TWO_POOLS, widths=(1, 2, 4)), TWO_POOLS.span_steps(0)
    assert gate(OneSpanDependent(ringed), form).proven_spans[1] == tuple(s for s in steps if s != 384)
    assert gate(SpanDependent(ringed), form).proven_spans == ((640,), (640,))


def test_where_no_width_is_equal_the_quick_form_tries_few() -> None:
    verifier = WidthDependent(shape_of(t_max=128, context=256))
    assert gate(verifier).proven_widths == (4,)
    assert verifier.passes <= 100


def test_an_invariance_that_was_not_measured_is_named() -> None:
    verdict = gate(NumpyVerifier(shape_of()))
    without = [v for v in verdict.invariances if v.invariance is not LANE]
    with pytest.raises(ExactnessGateError, match=r"\(lane: not run\)"):
        require_exactness(verdict.model_copy(update={"invariances": tuple(without)}))


@pytest.mark.slow
def test_the_verdict_names_the_first_difference() -> None:
    verdict = gate(LaneVariant(shape_of()), "full")
    (lane,) = (v for v in verdict.invariances if v.invariance is LANE)
    assert "one row a pass in lane 1 of 4" in lane.detail
    assert "position" in lane.detail
    assert 0 < lane.unequal < lane.cases
    assert lane.largest_difference > 0


@pytest.mark.slow
def test_a_value_that_is_not_finite_is_named() -> None:
    stale = next(v for v in gate(StaleNaN(shape_of())).invariances if v.invariance is STALE)
    assert stale.detail == "before the first pass slot 127 of pool global holds a value that is not finite"
    lane = next(v for v in gate(LogitsNaN(shape_of()), "full").invariances if v.invariance is LANE)
    assert "a logit of the pad row in lane 3 of pass 0 is not finite" in lane.detail


def test_the_state_is_left_as_zeros() -> None:
    verifier = NumpyVerifier(shape_of(sequences=2, window=20))
    gate(verifier)
    assert not any(array.any() for array in (*verifier.keys, *verifier.values))


def test_the_same_seed_measures_the_same_cases() -> None:
    first, second = NumpyVerifier(shape_of()), NumpyVerifier(shape_of())
    assert gate(first).invariances == gate(second).invariances
    assert first.passes == second.passes


def test_given_prompts_are_played() -> None:
    seen: set[int] = set()

    class Spy(NumpyVerifier):
        def forward(self, plan):  # type: ignore[no-untyped-def]
            seen.update(row.token for row in plan.rows if row.kind == "carry")
            return super().forward(plan)

    exactness_gate(Spy(shape_of()), HERE, form="quick", prompts=[[7] * 100])
    assert 7 in seen
    assert len(seen) == 1


@pytest.mark.parametrize("shape", [shape_of(t_max=128, context=256), shape_of(block=8, t_max=8)], ids=str)
def test_the_quick_form_takes_few_passes(shape: VerifierShape) -> None:
    """`generate` waits for it, and a pass of a large model takes seconds on a slow backend."""
    verifier = NumpyVerifier(shape)
    verdict = gate(verifier)
    assert verdict.allows_speculation
    assert verifier.passes <= 100


class FarLaneVariant(NumpyVerifier):
    """Only the last lane of only the widest pass has other bits."""

    def disturbance(self, lane: int, plan: PassPlan) -> float:
        return 1.01 if lane == len(plan.rows) - 1 == self.shape.t_max - 1 else 1.0


class EveryLaneOnce(NumpyVerifier):
    """One lane has other bits, whichever it is."""

    lane = 0

    def disturbance(self, lane: int, plan: PassPlan) -> float:
        return 1.01 if lane == self.lane and len(plan.rows) == self.shape.block else 1.0


def test_the_quick_form_sees_every_lane_and_every_width() -> None:
    verdict = gate(FarLaneVariant(shape_of(t_max=32)))
    assert verdict.standing_of(WIDTH) is Status.FAIL
    assert verdict.standing is Status.PASS
    for lane in range(8):
        verifier = EveryLaneOnce(shape_of(block=8))
        verifier.lane = lane
        assert gate(verifier).standing_of(LANE) is Status.FAIL, lane


def test_full_measures_more_than_quick() -> None:
    quick, full = gate(NumpyVerifier(shape_of())), gate(NumpyVerifier(shape_of()), "full")
    more = zip(quick.invariances, full.invariances, strict=True)
    assert all(b.cases > 2 * a.cases for a, b in more if a.invariance not in (REGION, SPAN))
    assert np.all([v.unequal == 0 for v in full.invariances])
