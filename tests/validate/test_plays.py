"""Plays: every token once and in order, whatever the cut, and no slot written twice in a pass."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_verifier import VOCABULARY, NumpyVerifier, shape_of

from anespec.runtime.passes import RowKind
from anespec.runtime.regions import RegionMap
from anespec.validate.plays import (
    Play,
    Scene,
    Stage,
    compare,
    cut,
    in_region,
    one_row_a_pass,
    row_of,
    same_bits,
    speculated,
    with_another_sequence,
    with_random_pads,
)

scenes = st.builds(
    Scene,
    past=st.just(()),
    start=st.integers(0, 30),
    tokens=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12).map(tuple),
)
widths = st.integers(1, 8)


@st.composite
def plays(draw: st.DrawFn) -> tuple[Scene, Play, int]:
    scene, width = draw(scenes), draw(widths)
    rng = np.random.default_rng(draw(st.integers(0, 5)))
    sizes = draw(st.lists(st.integers(1, width), min_size=1, max_size=4))
    play = draw(
        st.sampled_from(
            [
                one_row_a_pass(scene, width, width - 1),
                cut(scene, sizes, width),
                speculated(scene, [size - 1 for size in sizes], width, VOCABULARY, rng),
            ]
        )
    )
    others = [play, with_random_pads(play, scene, VOCABULARY, rng), in_region(play, 1)]
    others.append(with_another_sequence(play, 1, VOCABULARY, rng))
    return scene, draw(st.sampled_from(others)), width


@given(plays())
def test_every_token_is_recorded_once_in_order(case: tuple[Scene, Play, int]) -> None:
    scene, play, width = case
    recorded = [cell for lanes in play.passes for cell in lanes if cell.recorded]
    assert [cell.position for cell in recorded] == list(scene.positions)
    assert tuple(cell.token for cell in recorded) == scene.tokens
    assert all(len(lanes) == width for lanes in play.passes)


@given(plays())
def test_rows_of_a_pass_keep_the_promises_of_a_block(case: tuple[Scene, Play, int]) -> None:
    _, play, _ = case
    region_map = RegionMap.of(shape_of(sequences=2))
    for lanes in play.passes:
        rows = [row_of(cell, region_map) for cell in lanes]
        written = [row.slots[0].home for row in rows if row.slots[0].home is not None]
        assert len(written) == len(set(written))
        for row in rows:
            assert row.slots[0].visible
            assert (row.slots[0].home is None) == (row.kind is RowKind.PAD)


@given(scenes, widths, st.integers(0, 9))
def test_a_wrong_draft_is_wrong(scene: Scene, width: int, seed: int) -> None:
    play = speculated(scene, [0], width, VOCABULARY, np.random.default_rng(seed))
    truth = dict(zip(scene.positions, scene.tokens, strict=True))
    drafts = [c for lanes in play.passes for c in lanes if c.kind is RowKind.DRAFT]
    assert all(not cell.recorded for cell in drafts)
    assert all(truth.get(cell.position) != cell.token for cell in drafts)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 60), st.integers(0, 40), st.sampled_from([None, 20]))
def test_the_past_is_made_of_real_values_up_to_the_start(start: int, past: int, window: int | None) -> None:
    verifier = NumpyVerifier(shape_of(sequences=2, window=window))
    scene = Scene(tuple(range(min(past, start))), start, (1, 2))
    Stage(verifier).prepare(scene, region=1)
    filled = verifier.keys[0].any(axis=1)
    if min(past, start):
        assert filled[128 : 128 + start].all()
    assert not filled[:128].any()
    assert not filled[128 + start :].any()


def test_litter_leaves_the_past_alone_and_fills_the_rest() -> None:
    verifier = NumpyVerifier(shape_of(sequences=2))
    stage, scene = Stage(verifier), Scene(tuple(range(9)), 20, (1, 2))
    stage.prepare(scene)
    before = [array.copy() for array in verifier.arrays(0)]
    stage.litter(scene, np.random.default_rng(0))
    for old, new in zip(before, verifier.arrays(0), strict=True):
        assert np.array_equal(old[:20], new[:20])
        assert new[20:].all()
        assert np.abs(new).max() <= 2 * np.abs(old).max()


def test_restore_brings_back_what_a_play_overwrote() -> None:
    verifier = NumpyVerifier(shape_of(window=20))
    stage, scene = Stage(verifier), Scene(tuple(range(9)), 70, (1, 2, 3))
    stage.prepare(scene)
    arrays = [*verifier.keys, *verifier.values]
    before = [array.copy() for array in arrays]
    stage.run(speculated(scene, [0], 4, VOCABULARY, np.random.default_rng(0)), scene)
    assert not all(np.array_equal(*pair) for pair in zip(before, arrays, strict=True))
    stage.restore()
    assert all(np.array_equal(*pair) for pair in zip(before, arrays, strict=True))


def test_bits_are_compared_not_values() -> None:
    zero = np.zeros(3, np.float16)
    assert same_bits(zero, zero.copy())
    assert not same_bits(zero, -zero)


def test_a_difference_in_the_state_alone_is_found() -> None:
    stage, scene = Stage(NumpyVerifier(shape_of())), Scene((), 0, (1, 2, 3))
    stage.prepare(scene)
    recording = stage.run(one_row_a_pass(scene, 4), scene)
    states = dict(recording.states)
    states[1] = tuple(np.nextafter(a, np.float16(9)) for a in states[1])
    found = compare(recording, type(recording)(recording.logits, states, ()), "altered")
    assert (found.cases, found.unequal, found.largest) == (6, 1, 0.0)
    assert found.first == "altered: the K/V bits at position 1 differ"
