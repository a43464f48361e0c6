"""The search against engines whose every fault is known: the best of all candidates, within 5 %."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated import SPACE, SimulatedEngine
from slow import slow_but

from anespec.manifests.graph_choices import RangeDefault, ReshapeHint
from anespec.manifests.schema import KVForm, Shapes
from anespec.system.errors import AnespecError
from anespec.validate.tuning.candidates import Candidate, Space
from anespec.validate.tuning.search import Trial, search
from anespec.validate.tuning.workbench import ACCEPTANCE, Workload

WORKLOAD = Workload()
IN_GRAPH = frozenset({KVForm.SLICE_UPDATE, KVForm.BLENDED, KVForm.REREAD, KVForm.PACKED})

ENGINES = {
    "as ane-book measured it": SimulatedEngine(),
    "rows are free up to sixteen": SimulatedEngine(free_rows=16),
    "every row costs": SimulatedEngine(free_rows=1),
    "int8 per channel runs on the CPU (stablehlo-coreml#110)": SimulatedEngine(
        on_cpu=frozenset({"int8-channel"})
    ),
    "four-bit palettes are wrong (coremltools#2716)": SimulatedEngine(wrong=frozenset({"lut4"})),
    "state writes in the graph give -14 (mobius#77)": SimulatedEngine(refused=IN_GRAPH),
    "more than three states give 0x1d (CoreML-LLM)": SimulatedEngine(
        most_states=3, killed=frozenset({"outside"})
    ),
    "shards above 1 GB give -14": SimulatedEngine(largest_shard=1_000_000_000, refuses_large=True),
    "shards above 1 GB fall to the CPU in silence": SimulatedEngine(largest_shard=1_000_000_000),
    "flexible shapes run on the CPU (coremltools#2600)": SimulatedEngine(on_cpu=frozenset({"range"})),
    "several functions hold their weights twice (anemll-forge)": SimulatedEngine(most_held=4_000_000_000),
    "killed at the first prediction with a range (coremltools#2758)": SimulatedEngine(
        killed=frozenset({"range"})
    ),
    "only packed states in static shapes run at all": SimulatedEngine(
        refused=frozenset({"range", "functions"}) | (IN_GRAPH - {KVForm.PACKED}),
        killed=frozenset({"outside"}),
    ),
    "only lut8, functions and outside together are resident": SimulatedEngine(
        on_cpu=frozenset({"int8-channel", "lut6", "lut4", "fp16", "range", "static"}) | IN_GRAPH
    ),
    "the rules keep half of it away": SimulatedEngine(
        by_the_rules=frozenset({"grouped", "fp16"}), wrong=frozenset({"lut4", "lut6"})
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(ENGINES, *list(ENGINES)[::2]))
def test_the_known_optimum_is_met_within_five_percent(name: str) -> None:
    engine = ENGINES[name]
    found = search(SPACE, engine, WORKLOAD)
    assert found.best.measured.usable
    assert found.best.seconds <= 1.05 * engine.optimum(SPACE, WORKLOAD)


@pytest.mark.parametrize("name", ENGINES)
def test_no_probe_is_measured_twice_and_few_are(name: str) -> None:
    engine = replace(ENGINES[name], asked=[])
    search(SPACE, engine, WORKLOAD)
    assert len(engine.asked) == len(set(engine.asked))
    assert len(engine.asked) < 210


FAULTY = st.frozensets(
    st.sampled_from([*SPACE.weights, *SPACE.kv_form, *SPACE.shapes, *SPACE.attention]), max_size=4
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.builds(
        SimulatedEngine,
        on_cpu=FAULTY,
        refused=FAULTY,
        wrong=FAULTY,
        free_rows=st.sampled_from([1, 4, 8, 16]),
        largest_shard=st.sampled_from([300_000_000, 1_000_000_000, 2_015_800_000]),
        most_states=st.sampled_from([1000, 3]),
    )
)
def test_what_is_found_is_usable_and_no_worse_than_any_neighbour(engine: SimulatedEngine) -> None:
    try:
        found = search(SPACE, engine, WORKLOAD)
    except AnespecError:
        with pytest.raises(ValueError, match=r"min\(\)|empty"):
            engine.optimum(SPACE, WORKLOAD)
        return
    assert engine.seconds(found.best.candidate, WORKLOAD) == found.best.seconds
    for stage in (("weights", "kv_form"), ("attention", "shapes"), ("layout",), ("block", "prefill_block")):
        for candidate in SPACE.around(found.best.candidate, stage):
            seconds = engine.seconds(candidate, WORKLOAD)
            assert seconds is None or seconds > 0.98 * found.best.seconds


def test_what_is_as_fast_does_not_replace_the_default() -> None:
    flat = replace(SPACE, weights=("int8-channel", "lut8"), attention=SPACE.attention)
    best = search(flat, SimulatedEngine(), WORKLOAD).best.candidate
    assert (best.weights, best.kv_form, best.attention) == ("int8-channel", *_first(flat))


def _first(space: Space) -> tuple[object, ...]:
    return space.kv_form[0], space.attention[0]


def test_every_candidate_is_told_of_as_it_is_tried() -> None:
    told: list[Trial] = []
    found = search(SPACE, SimulatedEngine(wrong=frozenset({"lut4"})), WORKLOAD, told.append)
    assert tuple(told) == found.trials
    assert any(math.isinf(trial.seconds) and "golden" in (trial.measured.why_not or "") for trial in told)


def test_an_engine_that_runs_nothing_is_one_sentence() -> None:
    engine = SimulatedEngine(refused=frozenset(SPACE.shapes))
    with pytest.raises(AnespecError, match=r"none of \d+ ways .* -14"):
        search(SPACE, engine, WORKLOAD)


def test_only_packages_of_functions_have_another_prefill_block() -> None:
    for candidate in SPACE.around(None, ()):
        assert (candidate.prefill_block is not None) == (candidate.shapes is Shapes.FUNCTIONS)
        assert isinstance(candidate, Candidate)


HINTED = replace(SPACE, range_default=tuple(RangeDefault), reshape_hint=tuple(ReshapeHint))


@pytest.mark.slow
def test_a_range_s_default_and_hint_are_searched_and_no_other_shape_s() -> None:
    for candidate in HINTED.around(None, ()):
        is_range = candidate.shapes is Shapes.RANGE
        assert (candidate.range_default is not None, candidate.reshape_hint is not None) == (is_range,) * 2
    only_hinted = SimulatedEngine(on_cpu=frozenset({"static", "functions", "none", RangeDefault.ONE}))
    best = search(HINTED, only_hinted, WORKLOAD).best.candidate
    assert (best.shapes, best.range_default) == (Shapes.RANGE, RangeDefault.BLOCK)
    assert best.reshape_hint is ReshapeHint.FREQUENT
    assert ", the block by default, hint frequent, shards up to" in str(best)


@pytest.mark.parametrize("quick", [Shapes.STATIC, Shapes.FUNCTIONS])
def test_what_starts_in_seconds_and_is_as_fast_replaces_what_takes_minutes(quick: Shapes) -> None:
    """A range was seen to take 112 and 133 s in every process (ane-book, B)."""
    slow = {shapes: 245.0 for shapes in Shapes if shapes is not quick}
    assert search(HINTED, SimulatedEngine(), WORKLOAD).trials[0].candidate.shapes is Shapes.RANGE
    engine = SimulatedEngine(load_seconds=slow, on_cpu=frozenset({"static", "functions"} - {quick}))
    assert search(HINTED, engine, WORKLOAD).best.candidate.shapes is quick


def test_what_starts_in_seconds_and_is_far_slower_replaces_nothing() -> None:
    engine = SimulatedEngine(load_seconds={Shapes.RANGE: 245.0}, on_cpu=frozenset({"static", "functions"}))
    assert search(HINTED, engine, WORKLOAD).best.candidate.shapes is Shapes.RANGE


def test_tokens_per_pass_of_the_usual_acceptance() -> None:
    assert Workload().tokens_per_pass(1) == 1
    assert Workload().tokens_per_pass(4) == pytest.approx(1.65, abs=0.01)


@pytest.mark.parametrize("block", [1, 2, 4, 8])
@pytest.mark.parametrize("chunk", [8, 16, 64])
def test_a_pass_makes_fewer_tokens_where_chunks_end(block: int, chunk: int) -> None:
    """Counted on simulated texts, in which every draft is right with the same chance."""
    rng, passes, tokens = np.random.default_rng(7), 0, 0
    while tokens < 40_000:
        left = chunk
        while left:
            rows = min(block, left)
            right = (rng.random(rows - 1) < ACCEPTANCE).cumprod().sum()
            passes, tokens, left = passes + 1, tokens + 1 + int(right), left - 1 - int(right)
    assert Workload().tokens_per_pass(block, chunk) == pytest.approx(tokens / passes, rel=0.01)
    assert Workload().tokens_per_pass(block, chunk) <= Workload().tokens_per_pass(block)


def test_a_prompt_takes_more_passes_in_short_chunks() -> None:
    workload = Workload(prompt_tokens=100)
    assert [workload.prompt_passes(64, chunk) for chunk in (None, 64, 32, 8)] == [2, 2, 4, 13]
    assert workload.prompt_passes(4, 32) == 25
