"""Every rule fires on its fault, and only it; on the healthy shard none does but the two known warnings."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mutations as plant
import pytest
from graphs import layers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from probes import BLOCK, NAME, Probe, alone, head_of, layers_of, model_of, view_of

from anespec.convert.package import write_package
from anespec.manifests.residency import Device, Placement, Plan, RuleFinding, Severity, ShardResidency
from anespec.manifests.schema import AttentionShape, KVForm, Target, WeightFormat
from anespec.runtime.backends.portable.mil_package import FileReference, model_classes, read_package
from anespec.system.errors import RequestError
from anespec.validate.residency.prediction import Prediction, predict
from anespec.validate.residency.rule import Effect, Finding, Grade, Rule, ShardRule
from anespec.validate.residency.rules import PRACTICES, RULES, find_rule
from anespec.validate.residency.rules.inputs import ManyStates, StateWrites
from anespec.validate.residency.shard_view import ArtifactView, ShardView, view_model, view_package

RANGE_WARNING = "flexible-beside-state"
ALWAYS = {"narrow-last-axis", "state-writes", "int8-per-channel", RANGE_WARNING}
MB = 1_000_000
GB = 1_000_000_000


Fault = Callable[[Any], None]


class Healthy:
    """A shard that is healthy until faults are planted in it."""

    def __init__(self) -> None:
        self._serialised = model_of(layers_of(Probe())).SerializeToString()

    def __call__(self, *faults: Fault) -> ShardView:
        model = model_classes().Model()
        model.ParseFromString(self._serialised)
        for fault in faults:
            fault(model)
        return view_model(model, NAME, "0" * 64, BLOCK)


@pytest.fixture(scope="module")
def planted() -> Healthy:
    return Healthy()


def judged(*views: ShardView) -> Prediction:
    return predict(ArtifactView(views), "fingerprint", BLOCK)


def severities(prediction: Prediction) -> dict[str, Severity]:
    """The worst severity of each rule that found something, the known warnings left out."""
    found: dict[str, Severity] = {}
    for finding in prediction.findings:
        if finding.rule not in ALWAYS and found.get(finding.rule) is not Severity.FAIL:
            found[finding.rule] = finding.severity
    return found


def placement(plan: Plan) -> Placement:
    (shard,) = plan.shards
    return ShardResidency.of(shard).placement


FAIL, WARN = Severity.FAIL, Severity.WARN
ANE, CPU, MIXED, REFUSED = Placement.ANE, Placement.CPU, Placement.MIXED, Placement.REFUSED

FAULTS: dict[str, tuple[Fault, dict[str, Severity], Placement]] = {
    "rank 6": (plant.rank_six, {"tensor-rank": FAIL}, MIXED),
    "fp32": (plant.cast_to_fp32, {"element-type": FAIL}, MIXED),
    "fp32 in a nested block": (plant.fp32_in_a_nested_block, {"element-type": FAIL}, MIXED),
    "dimension 20000": (plant.dimension_of(20000), {"wide-dimension": WARN}, ANE),
    "dimension 70000": (plant.dimension_of(70000), {"wide-dimension": FAIL}, MIXED),
    "state of fp32": (plant.state_of_fp32, {"state-type": FAIL, "element-type": FAIL}, REFUSED),
    "state of unknown length": (plant.state_of_unknown_length, {"state-type": FAIL}, REFUSED),
    "state of width 270": (plant.state_of_width(270), {"state-width": FAIL}, REFUSED),
    "one input fixed": (plant.one_input_fixed, {"ranges-beside-state": FAIL}, REFUSED),
    "enumerated": (plant.one_input_enumerated, {"enumerated-beside-state": FAIL}, REFUSED),
    "default T = 4": (plant.default_of_four_rows, {"default-shape": WARN}, ANE),
    "scatter": (plant.scatter, {"scatter": FAIL}, MIXED),
    "softplus": (plant.softplus, {"softplus": WARN}, ANE),
    "exp": (plant.exponential, {"exponential": WARN}, ANE),
    "a state that is only read": (plant.state_never_written, {"state-reads": WARN}, ANE),
    "shift and concat": (plant.shift_and_concat, {"shift-and-concat": FAIL}, REFUSED),
    "topk": (plant.topk_and_cast, {"topk": FAIL}, MIXED),
    "gather of 40000 rows": (plant.gather_from(40000), {"gather-table": FAIL}, MIXED),
    "gather of 40000 columns": (plant.gather_along_last_axis, {"gather-table": FAIL}, MIXED),
    "linear": (plant.linear_to(4096), {"linear-operation": WARN}, ANE),
    "linear to 20000": (
        plant.linear_to(20000),
        {"linear-operation": WARN, "wide-linear": WARN, "wide-dimension": WARN},
        ANE,
    ),
    "matmul with a constant": (plant.matmul_with_constant, {"linear-operation": WARN}, ANE),
    "depthwise": (plant.conv_in_groups(1024), {"depthwise-conv": WARN}, ANE),
    "int4 per block": (plant.weights(plant.INT4, 1024, 32, 1, 1), {"int4-per-block": FAIL}, MIXED),
    "int8 per block": (plant.weights(plant.INT8, 1024, 32, 1, 1), {"int8-per-block": FAIL}, MIXED),
    "int8 per block before iOS 18": (plant.old_weights_per_block, {"int8-per-block": FAIL}, MIXED),
    "float offset": (plant.float_offset, {"float-offset": WARN}, ANE),
    "a negative scale": (plant.scales_of(0.5, -0.5), {"negative-scale": WARN}, ANE),
    "palettes of 16": (plant.palettes(64, 1, 1, 1, indices=plant.UINT4), {"lut4-beside-state": WARN}, ANE),
    "palettes per row and block": (
        plant.palettes(64, 32, 1, 1),
        {"palette-per-row-and-block": FAIL},
        REFUSED,
    ),
    "two functions": (plant.second_function, {"multifunction": WARN}, ANE),
}

HARMLESS: dict[str, Fault] = {
    "nothing": lambda model: None,
    "rank 5": plant.rank_five,
    "int16": plant.cast_to_int16,
    "dimension 16384": plant.dimension_of(16384),
    "state of width 256": plant.state_of_width(256),
    "all inputs fixed": plant.all_inputs_fixed,
    "concat of no state": plant.concat_without_a_state,
    "cast without topk": plant.cast_alone,
    "gather of 30000 rows": plant.gather_from(30000),
    "two groups": plant.conv_in_groups(2),
    "int4 per channel": plant.weights(plant.INT4, 1024, 1, 1, 1),
    "int4 per tensor": plant.weights(plant.INT4, 1, 1, 1, 1),
    "int8 per tensor": plant.weights(plant.INT8, 1, 1, 1, 1),
    "integer offset": plant.integer_offset,
    "a scale of zero": plant.scales_of(0.0),
    "one palette": plant.palettes(1, 1, 1, 1),
    "palettes per grouped channel": plant.palettes(64, 1, 1, 1),
    "palettes of 64 entries": plant.palettes(64, 1, 1, 1, indices=plant.UINT6),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_nothing_else(planted: Healthy, name: str) -> None:
    fault, expected, where = FAULTS[name]
    prediction = judged(planted(fault))
    assert severities(prediction) == expected
    assert placement(prediction.plan) is where


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_allowed_is_not_a_fault(planted: Healthy, name: str) -> None:
    prediction = judged(planted(HARMLESS[name]))
    expected = ALWAYS - {RANGE_WARNING} if name == "all inputs fixed" else ALWAYS
    assert {finding.rule for finding in prediction.findings} == expected
    assert placement(prediction.plan) is ANE


ALONE = [name for name, (fault, _, _) in FAULTS.items() if fault not in (
    plant.state_of_fp32, plant.state_of_unknown_length, plant.second_function, plant.fp32_in_a_nested_block,
)]  # fmt: skip
OF_A_WEIGHT = ("per block", "palettes", "per row", "scale", "offset")
ONE_WEIGHT = {name for name in ALONE if any(part in name for part in OF_A_WEIGHT)}
ONE_STATE = {"state of width 270"}


@pytest.mark.slow
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.sets(st.sampled_from(ALONE), max_size=5))
def test_faults_do_not_hide_each_other(planted: Healthy, names: set[str]) -> None:
    """Whatever set of faults is planted, exactly their rules fire."""
    weights = sorted(names & ONE_WEIGHT)[1:]
    chosen = sorted(names - set(weights))
    expected: dict[str, Severity] = {}
    for name in chosen:
        for rule, severity in FAULTS[name][1].items():
            expected[rule] = FAIL if FAIL in (severity, expected.get(rule)) else WARN
    assert severities(judged(planted(*(FAULTS[name][0] for name in chosen)))) == expected


@pytest.mark.slow
@pytest.mark.parametrize("shape", AttentionShape)
@pytest.mark.parametrize("weights", [WeightFormat.FP16, WeightFormat.INT8_CHANNEL, WeightFormat.LUT8])
def test_what_the_converter_writes_is_healthy(shape: AttentionShape, weights: WeightFormat) -> None:
    prediction = judged(view_of(layers_of(Probe(attention=shape, weights=weights))))
    known = ALWAYS if weights is WeightFormat.INT8_CHANNEL else ALWAYS - {"int8-per-channel"}
    assert {finding.rule for finding in prediction.findings} == known
    assert placement(prediction.plan) is ANE


def test_int32_positions_that_bound_a_write_leave_it_where_it_is() -> None:
    prediction = judged(view_of(layers_of(Probe(kv_form=KVForm.AT_POSITION))))
    assert "element-type" not in {finding.rule for finding in prediction.findings}
    assert placement(prediction.plan) is ANE


def test_narrow_axes_warn_and_wide_ones_do_not(planted: Healthy) -> None:
    (finding,) = (found for found in judged(planted()).findings if found.rule == "narrow-last-axis")
    assert finding.severity is WARN
    assert "x [1, 1024, ?, 1]" in finding.subject
    assert "attn_mask" not in finding.subject, "its last axis has 256 slots"
    assert "rope_cos" not in finding.subject, "its last axis has 32 pairs"
    assert {found.rule for found in judged(planted(plant.wide_axes)).findings} == ALWAYS - {
        "narrow-last-axis"
    }


def test_a_head_of_20000_channels_is_too_wide_for_some_chips() -> None:
    wide = judged(view_of(head_of(20000), is_head=True))
    assert severities(wide) == {"wide-head": WARN, "wide-dimension": WARN}
    assert placement(wide.plan) is ANE, "an M4 Max ran 66,688"
    assert not severities(judged(view_of(head_of(16384), is_head=True)))
    as_layer = judged(view_of(head_of(20000)))
    assert severities(as_layer) == {"wide-dimension": WARN}, "a feed-forward may be wide, a head may not"


@pytest.mark.parametrize(
    ("size", "expected", "where"),
    [
        (40_000, {"small-shard": FAIL}, CPU),
        (8_899_999, {"small-shard": FAIL}, CPU),
        (8_900_000, {"small-shard": WARN}, ANE),
        (13_999_999, {"small-shard": WARN}, ANE),
        (14 * MB, {}, ANE),
        (GB, {}, ANE),
        (GB + 1, {"large-shard": WARN}, ANE),
        (2_015_800_000, {"large-shard": WARN}, ANE),
        (2_015_800_001, {"large-shard": WARN}, ANE),
        (2_300_000_000, {"large-shard": FAIL}, CPU),
        (3_100_000_000, {"large-shard": FAIL, "process-weights": WARN}, CPU),
    ],
)
def test_bands_of_shard_sizes(
    planted: Healthy, size: int, expected: dict[str, Severity], where: Placement
) -> None:
    prediction = judged(replace(planted(), weight_bytes=size))
    assert severities(prediction) == expected
    assert placement(prediction.plan) is where


def test_bands_say_what_was_measured(planted: Healthy) -> None:
    def detail(size: int) -> str:
        findings = judged(replace(planted(), weight_bytes=size)).findings
        return next(f.detail for f in findings if f.rule == "large-shard")

    assert "iPhone" in detail(2_015_800_000)
    assert "nothing was measured" in detail(2_100_000_000)
    assert "wholly on the CPU" in detail(2_400_000_000)


def test_a_process_holds_the_weights_of_all_shards(planted: Healthy) -> None:
    def shards(size: int, count: int) -> list[ShardView]:
        view = replace(planted(), weight_bytes=size)
        return [replace(view, name=f"shards/{i}.mlpackage") for i in range(count)]

    assert not severities(judged(*shards(750 * MB, 4)))
    found = judged(*shards(751 * MB, 4))
    assert severities(found) == {"process-weights": WARN}
    (finding,) = (f for f in found.findings if f.rule == "process-weights")
    assert finding.shard is None


def test_functions_share_the_weights_of_a_package(planted: Healthy) -> None:
    twice = replace(planted(plant.second_function), weight_bytes=900 * MB)
    both = [twice, replace(twice, name="shards/other.mlpackage")]
    assert severities(judged(*both)) == {"multifunction": WARN}


@pytest.mark.parametrize(("bits", "rule"), [(plant.INT4, "int4-per-block"), (plant.INT8, "int8-per-block")])
def test_weights_per_block_fail_in_shards_of_any_size(planted: Healthy, bits: int, rule: str) -> None:
    view = replace(planted(plant.weights(bits, 1024, 32, 1, 1)), weight_bytes=900 * MB)
    prediction = judged(view)
    assert severities(prediction) == {rule: FAIL}
    assert placement(prediction.plan) is MIXED


def test_int8_per_channel_is_said_once_with_what_to_fall_back_to(planted: Healthy) -> None:
    view = planted()
    both = judged(view, replace(view, name="shards/other.mlpackage"))
    (finding,) = (found for found in both.findings if found.rule == "int8-per-channel")
    assert finding.shard is None
    assert finding.severity is WARN
    assert finding.detail == "28 weights with one scale per output channel"
    assert "lut8" in finding.mend


def test_scales_are_read_from_the_weight_file(tmp_path: Path) -> None:
    package = tmp_path / "shard.mlpackage"
    write_package(layers(AttentionShape.GROUPED, weight_format=WeightFormat.INT8_CHANNEL), package)
    assert not severities_of_weights(package)
    (scale,) = (
        constant
        for name, constant in read_package(package).functions["main"].constants.items()
        if name.startswith("layer_0_down_weight/scale") and isinstance(constant, FileReference)
    )
    with (package / "Data" / "com.apple.CoreML" / "weights" / "weight.bin").open("r+b") as file:
        file.seek(scale.offset + 64 + 1)  # the record, then the first scale's high byte
        sign = file.read(1)[0] | 0x80
        file.seek(-1, 1)
        file.write(bytes([sign]))
    (finding,) = severities_of_weights(package)
    assert (finding.rule, finding.detail) == ("negative-scale", "1 negative scale")
    assert "layer_0_down_weight" in finding.subject


def severities_of_weights(package: Path) -> list[RuleFinding]:
    view = view_package(package, NAME, "0" * 64, BLOCK)
    return [found for found in judged(view).findings if found.rule == "negative-scale"]


def test_a_fault_moves_the_operations_that_it_names_and_no_others(planted: Healthy) -> None:
    plan = judged(planted(plant.weights(plant.INT4, 1024, 32, 1, 1), plant.topk_and_cast)).plan
    moved = {op.name: op.rules for op in plan.shards[0].operations if op.device is not Device.ANE}
    assert moved == {"layer_0_q": ("int4-per-block",), "best": ("topk",), "after": ("topk",)}
    assert all(op.rules == () for op in plan.shards[0].operations if op.device is Device.ANE)


def test_a_refused_shard_says_which_rule_refuses_it(planted: Healthy) -> None:
    (shard,) = judged(planted(plant.state_of_width(270))).plan.shards
    assert shard.operations == ()
    assert shard.refusal == "state k_0 [1, 4, 256, 270]: width 270 is not a multiple of 32 (state-width)"


def test_the_planner_decides_before_the_compiler_is_asked(planted: Healthy) -> None:
    small = replace(planted(plant.state_of_width(270)), weight_bytes=40_000)
    assert placement(judged(small).plan) is CPU
    refused = replace(planted(plant.one_input_enumerated), weight_bytes=40_000)
    assert placement(judged(refused).plan) is REFUSED


def found_by(rule: Rule, form: KVForm, layers: int, target: Target) -> list[str]:
    view = view_of(layers_of(Probe(layers=layers, kv_form=form)))
    return [finding.detail for finding in rule.check(ArtifactView((view,), target))]


@pytest.mark.fast_only("slice_update-2-iphone-True")
@pytest.mark.parametrize(
    ("form", "layers", "target", "warns"),
    [
        (KVForm.SLICE_UPDATE, 2, Target.IPHONE, True),
        (KVForm.SLICE_UPDATE, 1, Target.IPHONE, False),
        (KVForm.SLICE_UPDATE, 2, Target.MAC, False),
        (KVForm.PACKED, 4, Target.IPHONE, False),
        (KVForm.OUTSIDE, 2, Target.IPHONE, False),
    ],
)
def test_many_states_are_a_risk_on_an_iphone(form: KVForm, layers: int, target: Target, warns: bool) -> None:
    assert bool(found_by(ManyStates(), form, layers, target)) is warns


@pytest.mark.fast_only("at_position")
@pytest.mark.parametrize("form", KVForm)
def test_state_writes_are_a_risk_unless_the_host_holds_the_cache(form: KVForm) -> None:
    expected = [] if form is KVForm.OUTSIDE else ["has 4 state writes"]
    assert found_by(StateWrites(), form, 2, Target.MAC) == expected


def test_every_rule_was_seen_to_fire() -> None:
    fired = {rule for _, expected, _ in FAULTS.values() for rule in expected}
    elsewhere = {*ALWAYS, "many-states", "wide-head", "small-shard", "large-shard", "process-weights"}
    assert fired | elsewhere == {rule.id for rule in RULES}


def test_every_rule_is_complete_and_the_weakest_only_warn() -> None:
    ids = [rule.id for rule in (*RULES, *PRACTICES)]
    assert len(ids) == len(set(ids))
    for rule in RULES:
        assert rule.id == rule.id.lower().replace("_", "-").replace(" ", "-")
        assert all((rule.grades, rule.source, rule.fact, rule.looks_at, rule.mend))
        if set(rule.grades) <= {Grade.C}:
            assert rule.severity is WARN
        if rule.severity is FAIL:
            assert rule.effect is not Effect.NOTHING, (
                "a rule that fails takes something off the Neural Engine"
            )


def test_a_rule_that_warns_moves_nothing_whatever_its_effect(planted: Healthy) -> None:
    class Anecdote(ShardRule):
        id, grades, source, fact, looks_at, mend = "anecdote", (Grade.C,), "-", "-", "-", "-"
        severity, effect = Severity.WARN, Effect.SHARD

        def check_shard(self, shard: ShardView) -> Any:
            yield self.found(shard, "it", "was seen once")

    prediction = predict(alone(planted()), "fingerprint", BLOCK, (Anecdote(),))
    assert [finding.rule for finding in prediction.findings] == ["anecdote"]
    assert placement(prediction.plan) is ANE


def test_a_failing_finding_needs_no_operation_to_count(planted: Healthy) -> None:
    finding = Finding(NAME, "it", "is so", Severity.FAIL, Effect.SHARD)
    assert finding.operations == ()


def test_a_rule_is_found_by_its_name() -> None:
    assert find_rule("topk").id == "topk"
    assert find_rule("constants-have-no-device") in PRACTICES
    with pytest.raises(RequestError, match="state-width"):
        find_rule("state-widht")
    with pytest.raises(RequestError, match="--explain all"):
        find_rule("zzzz")
