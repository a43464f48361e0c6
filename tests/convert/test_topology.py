"""How layers and the vocabulary are cut into shards, and what is said about it."""

import re
from itertools import accumulate, combinations

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from anespec.convert.planning.report import explain
from anespec.convert.planning.shard_limits import HEAD_CHANNELS, SHARD_LIMITS, Outlook
from anespec.convert.planning.topology import (
    Origin,
    StackSizes,
    Topology,
    TopologyPlan,
    choose_preset,
    group_layers,
    head_slices,
    pattern_ends,
    plan_topology,
)
from anespec.convert.weights.encoding import stored_bytes
from anespec.convert.weights.formats import ENCODINGS
from anespec.manifests.presets import GraphForm, MatchedModel, find_preset, presets
from anespec.manifests.schema import AttentionShape, KVForm, Shapes, Target, WeightFormat
from anespec.system.errors import RequestError

MB = 1_000_000
PHI = find_preset("phi-4-mini")
MEASURED = GraphForm(attention=AttentionShape.PER_KV_HEAD, kv_form=KVForm.SLICE_UPDATE, shapes=Shapes.RANGE)
KINDS = ("sliding", "full")


def stack(layer_bytes: list[int], vocabulary: int = 100, kinds: list[str] | None = None) -> StackSizes:
    labels = tuple(kinds) if kinds is not None else ("full",) * len(layer_bytes)
    return StackSizes(tuple(layer_bytes), labels, vocabulary, 1000 * vocabulary)


def stack_of(model: MatchedModel, weights: WeightFormat = WeightFormat.INT8_CHANNEL) -> StackSizes:
    """The sizes of a plain Llama-like layer, worked out here."""
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    shapes = [(q, model.d), (kv, model.d), (kv, model.d), (model.d, q)]
    shapes += [(model.ff, model.d), (model.ff, model.d), (model.d, model.ff)]
    layer = sum(stored_bytes(ENCODINGS[weights], shape) for shape in shapes)
    head = stored_bytes(ENCODINGS[weights], (model.vocabulary, model.d))
    return StackSizes((layer,) * model.layers, ("full",) * model.layers, model.vocabulary, head)


def plan_for(
    model: MatchedModel, target: Target, weights: WeightFormat, asked: str | None = None
) -> TopologyPlan:
    choice = choose_preset(asked, model, target, weights, MEASURED)
    return plan_topology(stack_of(model, weights), target, preset=choice)


layer_sizes = st.one_of(
    st.builds(lambda size, count: [size] * count, st.integers(0, 2500 * MB), st.integers(1, 60)),
    st.lists(st.integers(0, 1200 * MB), min_size=1, max_size=40),
    st.lists(
        st.sampled_from((1 * MB, 13 * MB, 14 * MB, 500 * MB, 990 * MB, 3000 * MB)), min_size=1, max_size=40
    ),
)


@pytest.mark.slow
@given(sizes=layer_sizes, vocabulary=st.integers(1, 300_000), target=st.sampled_from(Target), data=st.data())
def test_a_plan_covers_everything_once_and_within_limits(
    sizes: list[int], vocabulary: int, target: Target, data: st.DataObject
) -> None:
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=len(sizes), max_size=len(sizes)))
    plan = plan_topology(stack(sizes, vocabulary, kinds), target)
    topology = plan.topology
    assert [i for shard in topology.layer_ranges for i in shard] == list(range(len(sizes)))
    assert sum(plan.layer_shard_bytes) == sum(sizes)
    for part, size in zip(topology.layer_ranges, plan.layer_shard_bytes, strict=True):
        assert len(part) == 1 or size <= SHARD_LIMITS[target].planned_bytes

    assert topology.heads[0].start == 0
    assert topology.heads[-1].stop == vocabulary
    assert all(a.stop == b.start for a, b in zip(topology.heads, topology.heads[1:], strict=False))
    assert len(topology.heads) == 1 or plan.stack.head_bytes > SHARD_LIMITS[target].planned_bytes
    assert max(plan.head_shard_bytes) <= SHARD_LIMITS[target].planned_bytes
    for tokens in topology.heads:
        slices = head_slices(tokens)
        assert [token for part in slices for token in part] == list(tokens)
        widths = [len(part) for part in slices]
        assert max(widths) - min(widths) <= 1
        assert max(widths) <= HEAD_CHANNELS
        assert len(widths) == -(-len(tokens) // HEAD_CHANNELS)


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@given(
    sizes=st.lists(
        st.sampled_from((1 * MB, 6 * MB, 13 * MB, 14 * MB, 300 * MB, 500 * MB, 990 * MB, 1500 * MB)),
        min_size=1,
        max_size=9,
    ),
    target=st.sampled_from((Target.MAC, Target.IPHONE)),
    data=st.data(),
)
def test_no_grouping_is_better(sizes: list[int], target: Target, data: st.DataObject) -> None:
    """Against every grouping there is: too small, too many, broken patterns, unevenness, in this order."""
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=len(sizes), max_size=len(sizes)))
    limits, natural = SHARD_LIMITS[target], pattern_ends(kinds)

    def cost(counts: tuple[int, ...]) -> tuple[int, int, int, int] | None:
        ends = list(accumulate(counts))
        shards = [sum(sizes[end - count : end]) for count, end in zip(counts, ends, strict=True)]
        if any(size > limits.planned_bytes and count > 1 for size, count in zip(shards, counts, strict=True)):
            return None
        small = sum(size < limits.smallest for size in shards)
        return small, len(shards), sum(end not in natural for end in ends[:-1]), sum(s * s for s in shards)

    groupings = [
        tuple(b - a for a, b in zip((0, *cuts), (*cuts, len(sizes)), strict=True))
        for count in range(len(sizes))
        for cuts in combinations(range(1, len(sizes)), count)
    ]
    best = min(found for counts in groupings if (found := cost(counts)) is not None)
    assert cost(group_layers(sizes, kinds, limits)) == best


@pytest.mark.slow
@given(count=st.integers(1, 150), size=st.integers(1, 900 * MB), target=st.sampled_from(Target))
def test_equal_layers_are_shared_out_evenly_larger_shards_first(
    count: int, size: int, target: Target
) -> None:
    counts = group_layers([size] * count, ["full"] * count, SHARD_LIMITS[target])
    assert max(counts) - min(counts) <= 1
    assert list(counts) == sorted(counts, reverse=True)
    assert len(counts) == 1 or -(-count // (len(counts) - 1)) * size > SHARD_LIMITS[target].planned_bytes


def test_small_layers_go_to_a_neighbour_even_where_that_takes_a_shard_more() -> None:
    # Two shards of a gigabyte would leave the small layer alone between them.
    sizes = [1000 * MB, 2 * MB, 400 * MB, 600 * MB]
    assert group_layers(sizes, ["full"] * 4, SHARD_LIMITS[Target.MAC]) == (1, 2, 1)


@pytest.mark.parametrize(
    ("kinds", "ends"),
    [
        ("aaaa", {1, 2, 3, 4}),
        ("aabaab", {3, 6}),
        ("aabaabaa", {3, 6, 7, 8}),
        ("xaabaab", {1, 4, 7}),
        ("abcde", {1, 2, 3, 4, 5}),
        ("aabaabttuttu", {3, 6, 9, 12}),
        ("", set()),
    ],
)
def test_patterns_of_kinds(kinds: str, ends: set[int]) -> None:
    assert pattern_ends(kinds) == ends


def test_a_shard_ends_with_a_pattern_where_bytes_allow() -> None:
    kinds = [*["sliding"] * 5, "full"] * 8
    roomy = plan_topology(stack([50 * MB] * 48, kinds=kinds), Target.MAC)
    assert roomy.topology.layers == (18, 18, 12)
    assert any("ends at the end of a repeating pattern" in reason for reason in roomy.reasons)
    tight = plan_topology(stack([62 * MB] * 48, kinds=kinds), Target.MAC)
    assert tight.topology.layers == (16, 16, 16)
    assert any("end within a repeating pattern" in reason for reason in tight.reasons)


@pytest.mark.slow
def test_thousands_of_layers_are_planned_in_seconds() -> None:
    counts = group_layers([2 * MB] * 2048, ["full"] * 2048, SHARD_LIMITS[Target.MAC])
    assert sum(counts) == 2048
    assert len(counts) == 5


@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=8), data=st.data())
def test_overrides_are_taken_as_they_are(counts: list[int], data: st.DataObject) -> None:
    vocabulary = data.draw(st.integers(1, 1000))
    heads = data.draw(st.integers(1, vocabulary))
    whole = stack([1 << 40] * sum(counts), vocabulary)
    plan = plan_topology(whole, Target.MAC, override=tuple(counts), head_shards=heads)
    assert plan.origin is Origin.OVERRIDE
    assert plan.topology.layers == tuple(counts)
    assert len(plan.topology.heads) == heads
    assert [len(shard) for shard in plan.topology.layer_ranges] == counts


@pytest.mark.parametrize("override", [(2, 2), (3, 3), (6, -1), (5, 0), ()])
def test_an_override_that_does_not_fit_is_refused(override: tuple[int, ...]) -> None:
    with pytest.raises(RequestError, match=r"--topology .*the model has 5 layers"):
        plan_topology(stack([1] * 5), Target.CPU, override=override)


@pytest.mark.parametrize("head_shards", [0, -1, 101])
def test_impossible_head_shards_are_refused(head_shards: int) -> None:
    with pytest.raises(RequestError, match=f"--head-shards {head_shards} is not between 1 and"):
        plan_topology(stack([1] * 5), Target.CPU, head_shards=head_shards)


def test_a_topology_reads_like_the_option() -> None:
    assert str(Topology((20, 4, 6, 2), (range(3),))) == "20+4+6+2"


def test_phi_4_mini_gets_what_was_measured_for_it() -> None:
    plan = plan_for(PHI.model, Target.MAC, WeightFormat.INT8_CHANNEL)
    assert (plan.origin, plan.topology.layers) == (Origin.PRESET, (20, 4, 6, 2))
    assert plan.topology.heads == (range(200_064),), "one dispatch, where thirteen packages were thirteen"
    assert len(head_slices(range(200_064))) == 13
    # The source says 2015.8 MB of the largest package, norms and graph included.
    assert plan.layer_shard_bytes[0] == pytest.approx(2015.8 * MB, rel=1e-3)
    assert any("ane-book Exp. 26" in reason and "M4 Max" in reason for reason in plan.reasons)
    report = explain(plan)
    assert not any("Layers" in warning for warning in report.warnings)
    assert any("one process holds about 3.00 GB" in warning for warning in report.warnings)


@pytest.mark.parametrize(
    "change",
    [
        {"d": 3136}, {"layers": 30}, {"heads": 32}, {"kv_heads": 24}, {"ff": 9216}, {"vocabulary": 32064},
        {"architecture": "llama"}, {"head_dim": 64},
    ],
)  # fmt: skip
def test_a_model_of_other_sizes_is_planned_from_its_bytes(change: dict[str, object]) -> None:
    model = PHI.model.model_copy(update=change)
    plan = plan_for(model, Target.MAC, WeightFormat.INT8_CHANNEL)
    assert plan.origin is Origin.PLANNED
    assert plan.topology.layers != (20, 4, 6, 2)


@pytest.mark.parametrize(
    ("target", "weights"),
    [
        (Target.CPU, WeightFormat.INT8_CHANNEL),
        (Target.IPHONE, WeightFormat.INT8_CHANNEL),
        (Target.MAC, WeightFormat.FP16),
    ],
)
def test_a_preset_is_for_one_target_and_one_weight_format(target: Target, weights: WeightFormat) -> None:
    assert plan_for(PHI.model, target, weights).origin is Origin.PLANNED
    asked = plan_for(PHI.model, target, weights, asked=PHI.name)
    assert asked.origin is Origin.PRESET
    assert any("was not measured for this conversion" in warning for warning in explain(asked).warnings)


def test_a_preset_can_be_refused_replaced_and_asked_for_in_vain() -> None:
    refused = plan_for(PHI.model, Target.MAC, WeightFormat.INT8_CHANNEL, asked="none")
    assert (refused.origin, refused.preset, refused.topology.layers) == (Origin.PLANNED, None, (8, 8, 8, 8))
    choice = choose_preset(None, PHI.model, Target.MAC, WeightFormat.INT8_CHANNEL, MEASURED)
    replaced = plan_topology(stack_of(PHI.model), Target.MAC, preset=choice, override=(24, 8))
    assert replaced.origin is Origin.OVERRIDE
    assert any("replaces the preset phi-4-mini" in reason for reason in replaced.reasons)
    assert any("2.3 GB ran wholly on the CPU" in warning for warning in explain(replaced).warnings)
    with pytest.raises(RequestError, match="--preset phi-4-mini is for 32 layers, but the model has 5"):
        plan_topology(stack([1] * 5), Target.MAC, preset=choice)
    with pytest.raises(RequestError, match="'x' is not one of phi-4-mini, none"):
        choose_preset("x", PHI.model, Target.MAC, WeightFormat.INT8_CHANNEL, MEASURED)


def test_a_graph_of_another_form_is_said_to_be_similar() -> None:
    model, weights = PHI.model, WeightFormat.INT8_CHANNEL
    same = choose_preset(None, model, Target.MAC, weights, MEASURED)
    assert same is not None and not any("similar form" in reason for reason in same.reasons)
    packed = MEASURED.model_copy(update={"kv_form": KVForm.PACKED})
    other = choose_preset(None, model, Target.MAC, weights, packed)
    assert other is not None
    assert "in a graph of similar form (kv form slice_update there, packed here)" in " ".join(other.reasons)


def test_every_preset_is_a_plan() -> None:
    assert presets()
    for preset in presets().values():
        plan = plan_for(preset.model, preset.target, preset.weights)
        assert plan.topology.layers == preset.topology
        assert explain(plan).layer_shards[-1].part.stop == preset.model.layers


@pytest.mark.parametrize(
    ("sizes", "options", "target", "words"),
    [
        ([MB] * 5, {}, Target.MAC, "--target cpu is better"),
        ([20 * MB] * 5 + [MB], {"override": (5, 1)}, Target.MAC, "Layers 5 .*merge them with a neighbour"),
        ([1200 * MB] * 2, {}, Target.MAC, "Layers 0, 1 .*choose a smaller weight format"),
        ([600 * MB] * 2, {"override": (2,)}, Target.IPHONE, "above the 1 GB known of iPhones.*fewer layers"),
        ([600 * MB] * 2, {"override": (2,)}, Target.MAC, "depends on the graph.*fewer layers"),
        ([700 * MB] * 3, {"override": (3,)}, Target.MAC, "never measured"),
        ([400 * MB] * 8, {}, Target.IPHONE, "a phone app is one process"),
        ([400 * MB] * 8, {}, Target.MAC, "run the shards in several processes"),
        ([20 * MB], {"head_shards": 4}, Target.MAC, "Head shards of 5.0 MB: .*give fewer --head-shards"),
        ([20 * MB], {"head_shards": 2000}, Target.MAC, "Head shards of 10.0 kB: .*give fewer --head-shards"),
    ],
)
def test_warnings_name_the_thing_and_the_mend(
    sizes: list[int], options: dict[str, object], target: Target, words: str
) -> None:
    plan = plan_topology(stack(sizes, 20_000), target, **options)  # type: ignore[arg-type]
    report = explain(plan)
    assert any(re.search(words, warning) for warning in report.warnings), report.warnings


@given(sizes=layer_sizes, target=st.sampled_from(Target))
def test_the_report_has_every_shard_in_its_band(sizes: list[int], target: Target) -> None:
    plan = plan_topology(stack(sizes), target)
    report = explain(plan)
    assert [row.part for row in report.layer_shards] == list(plan.topology.layer_ranges)
    assert report.total_bytes == plan.stack.total_bytes
    for row in report.layer_shards:
        above = [r.at_least for r in SHARD_LIMITS[target].ranges if r.at_least > row.size_range.at_least]
        assert row.size_range.at_least <= row.bytes < min(above, default=row.bytes + 1)
        mentioned = any(row.size_range.finding in warning for warning in report.warnings)
        assert mentioned or row.size_range.outlook is Outlook.GOOD
    assert target is not Target.CPU or not report.warnings


def test_layers_that_share_keys_and_values_share_a_shard() -> None:
    kv_layers = (0, 1, 2, 3, 2, 3, 2)
    stack = StackSizes((10**9,) * 7, ("full",) * 7, 100, 100, kv_layers)
    plan = plan_topology(stack, Target.MAC)
    assert plan.topology.layers == (1, 1, 5)
    with pytest.raises(RequestError, match="ends before layer 4, which attends to the K/V of layer 2"):
        plan_topology(stack, Target.MAC, override=(4, 3))


def test_a_layer_that_blurs_later_ones_ends_its_shard_where_shards_cost_nothing() -> None:
    stack = StackSizes((MB,) * 8, ("full",) * 8, 100, 100, last=frozenset(range(2, 8)))
    plan = plan_topology(stack, Target.CPU)
    assert plan.topology.layers == (3, 1, 1, 1, 1, 1)
    assert any("chooses experts" in reason for reason in plan.reasons)
    assert plan_topology(stack, Target.MAC).topology.layers == (8,)


def test_layers_that_share_keys_and_values_share_a_shard_even_if_they_choose_experts() -> None:
    kv_layers = (0, 1, 2, 3, 2, 3, 6)
    stack = StackSizes((MB,) * 7, ("full",) * 7, 100, 100, kv_layers, frozenset(range(7)))
    assert plan_topology(stack, Target.CPU).topology.layers == (1, 1, 4, 1)


def test_an_override_of_any_length_is_refused_in_a_short_sentence() -> None:
    for override in ((1,) * 100_000, (10**4000,)):
        with pytest.raises(RequestError, match="adds up to") as caught:
            plan_topology(stack([MB] * 4, 100), Target.MAC, override=override)
        assert len(str(caught.value)) < 300
