"""The exactness gate on recurrent layers: it proves who keeps every promise, and finds each fault."""

from dataclasses import replace

import numpy as np
import pytest
from recurrent_verifier import (
    FoldsNothing,
    FoldsTheFirstRegion,
    ForgetsAFold,
    HearsOtherStates,
    LastRowIsNotLive,
    ReadsTheLastState,
    RecurrentVerifier,
    StaleRowsAreLive,
    StateIsNotCleared,
    StateIsNotCopied,
    hybrid_shape,
)
from soak_requests import soak_requests
from soak_round import SoakCount, soak_round

from anespec.manifests.verdicts import ExactnessVerdict, Invariance, RunEnvironment
from anespec.runtime.kv.slot_mapping import SlotMapping
from anespec.runtime.passes import RowKind
from anespec.runtime.proven import Proven
from anespec.validate.exactness.bit_comparison import compare
from anespec.validate.exactness.case_runner import CaseRunner
from anespec.validate.exactness.chunk_walk import within_chunks
from anespec.validate.exactness.effort import Form
from anespec.validate.exactness.gate import exactness_gate
from anespec.validate.exactness.invariance_cases import CaseRow, Probe, cut, padded, speculated
from anespec.validate.exactness.repeat_checks import packed, recorded_pass, unpacked

HERE = RunEnvironment(backend="numpy", library_version="1", machine="here", threads=1, artifact="a")


def verdict_of(verifier: RecurrentVerifier, form: Form = "quick") -> ExactnessVerdict:
    elsewhere = {"elsewhere": recorded_pass(verifier, ())}
    return exactness_gate(verifier, HERE, form=form, elsewhere=elsewhere)


@pytest.mark.fast_only("1-16", "1-64", "1-32", "3-32")
@pytest.mark.parametrize("chunk", [16, 32, 64])
@pytest.mark.parametrize("sequences", [1, 3])
def test_all_is_proven_of_a_verifier_that_keeps_every_promise(chunk: int, sequences: int) -> None:
    shape = hybrid_shape(chunk=chunk, sequences=sequences, context=192)
    verifier = RecurrentVerifier(shape)
    verdict = verdict_of(verifier)
    assert verdict.allows_speculation
    assert verdict.proven_widths == shape.widths
    assert verdict.proves(Invariance.REGION) == (sequences > 1)
    assert verifier.folds >= 15
    assert not verifier.carried.any()


@pytest.mark.slow
def test_all_is_proven_by_the_full_form_too() -> None:
    shape = hybrid_shape(sequences=2, context=512, t_max=32, partial_spans=True)
    verdict = verdict_of(RecurrentVerifier(shape), "full")
    assert verdict.allows_speculation
    assert verdict.proven_widths == shape.widths
    assert verdict.proven_spans == shape.spans
    assert all(v.proven for v in verdict.invariances)


@pytest.mark.parametrize(
    "fault",
    [
        FoldsNothing,
        ForgetsAFold,
        LastRowIsNotLive,
        StaleRowsAreLive,
        StateIsNotCleared,
        ReadsTheLastState,
        HearsOtherStates,
    ],
)
def test_the_gate_finds_what_speculation_must_not_do(fault: type[RecurrentVerifier]) -> None:
    assert not verdict_of(fault(hybrid_shape(sequences=2))).allows_speculation


@pytest.mark.parametrize("sequences", [2, 4])
@pytest.mark.parametrize("fault", [StateIsNotCopied, FoldsTheFirstRegion])
def test_the_gate_finds_what_another_region_must_not_do(
    fault: type[RecurrentVerifier], sequences: int
) -> None:
    assert not verdict_of(fault(hybrid_shape(sequences=sequences))).proves(Invariance.REGION)


def test_a_fold_that_does_nothing_is_named() -> None:
    verdict = verdict_of(FoldsNothing(hybrid_shape()))
    assert any("left a carried state as it was" in v.detail for v in verdict.invariances)


def test_passes_are_cut_where_a_chunk_ends_and_rows_keep_their_lanes() -> None:
    shape = hybrid_shape(sequences=2)
    home = SlotMapping.of(shape)
    probe = Probe((), 14, (1, 2, 3, 4))
    (planned,) = cut(probe, [4], 4).passes
    first, second = within_chunks(planned, home)
    assert [row.position for row in first.rows if row.recorded] == [14, 15]
    assert [(lane, row.position) for lane, row in enumerate(second.rows) if row.recorded] == [
        (2, 16),
        (3, 17),
    ]
    assert second.rows[0].kind is RowKind.PAD
    (whole,) = within_chunks(cut(probe, [2], 4).passes[0], home)
    assert whole == cut(probe, [2], 4).passes[0]


def test_wrong_drafts_behind_the_end_of_a_chunk_are_left_out() -> None:
    shape = hybrid_shape()
    probe = Probe((), 14, (1, 2, 3, 4))
    case = speculated(probe, [0], 4, shape.vocabulary, np.random.default_rng(0), shape.context)
    parts = [part for planned in case.passes for part in within_chunks(planned, SlotMapping.of(shape))]
    positions = [[row.position for row in part.rows if row.kind is not RowKind.PAD] for part in parts]
    assert positions == [[14, 15], [15], [16, 17, 18, 19], [17, 18, 19, 20]]


def test_two_sequences_end_chunks_of_their_own() -> None:
    rows = [CaseRow(RowKind.PROMPT, 1, 15), CaseRow(RowKind.PROMPT, 1, 16)]
    rows += [replace(row, position=row.position + 16, region=1) for row in rows]
    home = SlotMapping.of(hybrid_shape(sequences=2))
    first, second = within_chunks(padded(rows, 4), home)
    assert [(row.region, row.position) for row in first.rows if row.kind is not RowKind.PAD] == [
        (0, 15),
        (1, 31),
    ]
    assert [(row.region, row.position) for row in second.rows if row.kind is not RowKind.PAD] == [
        (0, 16),
        (1, 32),
    ]


def test_rows_of_chunks_and_carried_states_are_compared() -> None:
    verifier = RecurrentVerifier(hybrid_shape())
    runner, probe = CaseRunner(verifier), Probe((3, 4, 5), 30, tuple(range(20)))
    runner.prepare(probe)
    assert verifier.carried.any()
    case = cut(probe, [3], 4)
    found = runner.run(case, probe)
    assert {*found.chunk_rows} == {*probe.positions}
    assert {*found.carried} == {32, 48}
    runner.restore()
    assert compare(found, runner.run(cut(probe, [1, 2], 4), probe), "cut otherwise").equal
    (there,) = unpacked(packed({"there": found})).values()
    assert compare(found, there, "packed").equal
    other = {position: tuple(-value for value in values) for position, values in found.carried.items()}
    difference = compare(found, replace(found, carried=other), "altered")
    assert difference.unequal == 2
    assert difference.first == "altered: the carried bits at position 32 differ"


def test_a_recording_is_laid_so_that_its_text_goes_on() -> None:
    runner = CaseRunner(RecurrentVerifier(hybrid_shape()))
    probe = Probe((3, 4, 5), 30, tuple(range(40)))
    runner.prepare(probe)
    whole = runner.run(cut(probe, [4], 4), probe)
    for done in (1, 2, 3, 17, 18, 19, 30):
        runner.restore()
        runner.lay(whole, probe.start + done)
        rest = probe.part(done, 40)
        assert compare(whole, runner.run(cut(rest, [3], 4), rest), f"from {done}").equal


def soaked(verifier: RecurrentVerifier) -> SoakCount:
    """A round with drafts that are often right, and with all that could be proven."""
    shape, rng = verifier.shape, np.random.default_rng(7)
    proven = Proven(True, shape.widths, region_independent=True, spans=shape.spans)
    corpus = [int(token) for token in rng.integers(shape.vocabulary, size=600)]
    requests = list(soak_requests(corpus, shape, frozenset({2}), rng, 4))
    return soak_round(verifier, proven, requests, [None], rng)


def test_a_soak_folds_and_sees_a_fold_that_is_forgotten() -> None:
    shape = hybrid_shape(sequences=2, context=192)
    count = soaked(RecurrentVerifier(shape))
    assert count.differing == 0
    assert count.folded > 5
    assert count.accepted > 10
    assert soaked(ForgetsAFold(shape)).differing > 0
    proven = Proven(True, shape.widths, region_independent=True, spans=shape.spans)
    assert "folds of chunks" in count.model_copy(update={"folded": 0}).unused(proven, shape)
