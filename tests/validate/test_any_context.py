"""The gates have cases, and stay within the context, for every artifact that can be made."""

from pathlib import Path
from typing import Any, get_args

import pytest
from converting import build
from elsewhere import same
from examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strict_verifier import StrictVerifier

from anespec.convert.options import ConvertOptions
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.graph_choices import range_widths
from anespec.manifests.schema import (
    Hyperparameters,
    KVCacheGroup,
    KVForm,
    Manifest,
    Shapes,
    ShardFunction,
    Target,
)
from anespec.manifests.store import Artifact
from anespec.manifests.verdicts import REQUIRED_FOR_SPECULATION, ExactnessVerdict, Invariance, RunEnvironment
from anespec.runtime.backends import open_verifier
from anespec.runtime.drafters.lookup import LookupSource
from anespec.runtime.engine.engine import Engine
from anespec.runtime.engine.requests import FinishReason, Request
from anespec.runtime.passes import KVCacheGroupShape, VerifierShape, whole_plan
from anespec.runtime.proven import Proven
from anespec.system.errors import RequestError
from anespec.validate.exactness.effort import Form
from anespec.validate.exactness.gate import exactness_gate
from anespec.validate.exactness.width_checks import MAX_PASSES
from anespec.validate.gates import golden_gate
from anespec.validate.golden.figures import Stimulus
from anespec.validate.golden.shard_passes import plan_passes

FAMILIES = Path(__file__).resolve().parents[1] / "data" / "families"
HERE = RunEnvironment(backend="toy", library_version="1", machine="any", threads=1, artifact="a")
VOCABULARY = 40


@st.composite
def shapes(draw: st.DrawFn) -> VerifierShape:
    """Whatever a manifest may say of passes, contexts, sequences and rings, with small blocks."""
    block, sequences = draw(st.integers(1, 10)), draw(st.integers(1, 3))
    unit = 64 if sequences > 1 else 1
    context = draw(st.integers(max(1, -(-block // unit)), 320 // unit if unit > 1 else 90)) * unit
    pools = [KVCacheGroupShape("global", context, None)] if draw(st.booleans()) else []
    if not pools or draw(st.booleans()):
        window = draw(st.integers(1, 2 * context))
        needed = -(-min(context, window + block - 1) // unit)
        pools.append(KVCacheGroupShape("local", draw(st.integers(needed, context // unit)) * unit, window))
    t_max = draw(st.sampled_from([block, block + 1, 2 * block, 48]).filter(lambda most: most >= block))
    two = tuple(sorted({block, min(t_max, MAX_PASSES * block)}))  # what is wider the gate does not reach
    widths = draw(st.sampled_from([range_widths(block, 1, t_max), (block,), two]))
    partial = draw(st.booleans())
    return VerifierShape(block, widths, context, sequences, VOCABULARY, tuple(pools), partial_spans=partial)


def measure(shape: VerifierShape, form: Form = "quick") -> ExactnessVerdict:
    verifier, prompts = StrictVerifier(shape), ([5] * 30, [7])
    elsewhere = same(verifier, prompts)
    return exactness_gate(verifier, HERE, form=form, prompts=prompts, elsewhere=elsewhere)


def require_cases(verdict: ExactnessVerdict, shape: VerifierShape) -> None:
    assert verdict.allows_speculation
    wanted = {*REQUIRED_FOR_SPECULATION}
    wanted |= {Invariance.REGION} if shape.sequences > 1 else set()
    wanted |= {Invariance.WIDTH} if len(shape.widths) > 1 else set()
    steps = [shape.span_steps(pool) for pool in range(len(shape.pools))]
    wanted |= {Invariance.SPAN} if max(map(len, steps)) > 1 else set()
    assert {v.invariance for v in verdict.invariances if v.cases} == wanted


def global_shape(block: int, t_max: int, context: int, sequences: int) -> VerifierShape:
    pools, widths = (KVCacheGroupShape("global", context, None),), range_widths(block, 1, t_max)
    return VerifierShape(block, widths, context, sequences, VOCABULARY, pools)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(shapes())
@example(global_shape(16, 32, 256, 4))
@example(global_shape(1, 1, 1, 1))
@example(global_shape(12, 12, 12, 1))
def test_the_exactness_gate_fits_any_shape_and_has_cases(shape: VerifierShape) -> None:
    require_cases(measure(shape), shape)


def test_the_full_form_fits_where_another_sequence_outgrows_the_context() -> None:
    shape = global_shape(6, 6, 64, 2)
    require_cases(measure(shape, "full"), shape)


@settings(deadline=None, max_examples=examples(60))
@given(shapes(), st.sampled_from(get_args(Stimulus)))
@example(global_shape(64, 128, 64, 2), "random")
@example(global_shape(33, 128, 64, 1), "embeddings")
def test_the_golden_gate_s_passes_fit_any_shape(shape: VerifierShape, stimulus: Stimulus) -> None:
    pools = tuple(
        KVCacheGroup.model_construct(
            name=pool.name, region_slots=pool.region_slots, window=pool.window, slots=pool.region_slots
        )
        for pool in shape.pools
    )
    manifest = Manifest.model_construct(
        block=shape.block,
        shapes=Shapes.FUNCTIONS,
        functions=tuple(ShardFunction(name=str(width), rows=width) for width in shape.widths),
        context=shape.context,
        sequences=shape.sequences,
        pools=pools,
        kv_form=KVForm.BLENDED,
        t_max=max(shape.widths),
        hyperparameters=Hyperparameters.model_construct(vocabulary=shape.vocabulary),
    )
    plan = plan_passes(manifest, stimulus)
    strict = StrictVerifier(shape)
    assert plan.passes
    narrowest, wider = shape.widths[0], next((w for w in shape.widths if w > shape.block), shape.block)
    if shape.context > 5 * shape.block:
        assert {len(step.rows) for step in plan.passes} == {narrowest, shape.block, wider}
    assert len(plan.positions) == len(set(plan.positions)) == sum(step.real for step in plan.passes)
    for step in plan.passes:
        assert step.real
        strict.check(whole_plan(shape, step.rows))


@pytest.mark.slow
@settings(deadline=None, max_examples=8)
@given(
    block=st.integers(1, 10),
    context=st.integers(1, 300),
    sequences=st.integers(1, 4),
    target=st.sampled_from([Target.CPU, Target.MAC]),
)
@example(block=16, context=256, sequences=4, target=Target.CPU)
@example(block=24, context=24, sequences=1, target=Target.MAC)
@example(block=5, context=3, sequences=1, target=Target.MAC)
def test_what_convert_plans_fits_the_gates(block: int, context: int, sequences: int, target: Target) -> None:
    """Layers with a window of 32 beside layers without."""
    options = ConvertOptions(target=target, block=block, context=context, sequences=sequences)
    with GGUFFile(FAMILIES / "gemma3.gguf") as file:
        model = SourceModel(file)
        if context < block:
            with pytest.raises(RequestError, match="must be at least the block"):
                ConversionPlan(model, options)
            return
        plan = ConversionPlan(model, options)
    pools = tuple(KVCacheGroupShape(pool.name, pool.region_slots, pool.window) for pool in plan.pools)
    widths = range_widths(block, plan.passes.t_min, plan.passes.t_max)
    shape = VerifierShape(block, widths, plan.context, sequences, VOCABULARY, pools)
    require_cases(measure(shape), shape)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama", {"block": 14, "context": 64, "sequences": 2}),
        pytest.param("gemma2", {"block": 1, "context": 1, "target": Target.MAC}, marks=pytest.mark.slow),
    ],
)
def test_a_tiny_context_works_through_gates_and_generation(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    gguf = FAMILIES / f"{name}.gguf"
    artifact = Artifact(build(gguf, tmp_path / "m.anespec", **{"target": Target.CPU, **options}).path)
    assert golden_gate(artifact, gguf, "torch", 1, lambda *_: None).passed
    verifier = open_verifier(artifact, "openvino", 1)
    require_cases(exactness_gate(verifier, HERE, form="quick", elsewhere=same(verifier)), verifier.shape)
    engine = Engine(verifier, Proven(speculate=True, widths=verifier.shape.widths), LookupSource())
    events = list(engine.generate(Request([1, 5, 9], max_tokens=1000)))
    verifier.close()
    assert events[-1].finish is FinishReason.CONTEXT
    assert 3 + sum(len(event.tokens) for event in events) == verifier.shape.context
