"""Divide the layers into shards, and the vocabulary into head shards."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate, pairwise

from anespec.convert.planning.shard_limits import HEAD_CHANNELS, HEAD_EVIDENCE, SHARD_LIMITS, ShardLimits
from anespec.manifests.presets import (
    NO_PRESET,
    GraphForm,
    MatchedModel,
    Preset,
    find_preset,
    matching_preset,
)
from anespec.manifests.schema import Target
from anespec.system.errors import RequestError
from anespec.system.formatting import bytes_text, counted, printable

# A preset may determine the topology of a conversion.


@dataclass(frozen=True)
class PresetChoice:
    """A preset, and whether it was requested by name.

    `differences` are between the measured conversion and this one, `other_form` between the two graphs.
    """

    preset: Preset
    asked: bool
    differences: tuple[str, ...]
    other_form: tuple[str, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the preset is used, and the measurement behind it."""
        preset, provenance = self.preset, self.preset.provenance
        why = (
            f"requested by name, and differs from this conversion: {'; '.join(self.differences)}"
            if self.differences
            else f"it was measured for this model ({preset.model}), target and weight format"
        )
        form = f", in a graph of similar form ({'; '.join(self.other_form)})" if self.other_form else ""
        return (
            f"The preset {preset.name} applies: {why}.",
            f"Measured on {provenance.machine} at block {preset.block} and context {preset.context}{form}: "
            f"{provenance.measured} ({provenance.grade}: {provenance.source}).",
        )


def choose_preset(
    asked: str | None, model: MatchedModel, target: Target, weights: str, graph: GraphForm
) -> PresetChoice | None:
    """Return the preset with the name `asked`; without a name the preset that matches, if there is one.

    The name `none` means no preset.

    Raises:
        RequestError: no preset has this name.
    """
    if asked == NO_PRESET:
        return None
    preset = find_preset(asked) if asked is not None else matching_preset(model, target, weights)
    if preset is None:
        return None
    return PresetChoice(
        preset, asked is not None, preset.differences(model, target, weights), preset.other_form(graph)
    )


LONGEST_PATTERN = 32
"""The most layers in a repeating pattern of kinds; families have 2 to 8."""


@dataclass(frozen=True)
class Topology:
    """Layers per shard, and the tokens of each head shard (which `head_slices` divides further)."""

    layers: tuple[int, ...]
    heads: tuple[range, ...]

    @property
    def layer_ranges(self) -> tuple[range, ...]:
        """The layers of each shard."""
        ends = accumulate(self.layers)
        return tuple(range(end - count, end) for count, end in zip(self.layers, ends, strict=True))

    def __str__(self) -> str:
        return "+".join(str(count) for count in self.layers)


@dataclass(frozen=True)
class StackSizes:
    """The layers and the head that a topology divides, with their stored bytes.

    A kind is a label such as `sliding`; layers of one kind have the same graph. `kv_layers` has, for each
    layer, the layer to whose K/V it attends; empty means its own. A state is in one shard, so both layers
    must be in the same shard. `last` are the layers that end their shard where more shards cost nothing: the
    golden gate judges later layers of the shard less sharply, by what such a layer may change in them.
    """

    layer_bytes: tuple[int, ...]
    kinds: tuple[str, ...]
    vocabulary: int
    head_bytes: int
    kv_layers: tuple[int, ...] = ()
    last: frozenset[int] = frozenset()

    @property
    def joined(self) -> frozenset[int]:
        """The layers before which no shard may end."""
        pairs = enumerate(self.kv_layers)
        return frozenset(end for layer, source in pairs for end in range(source + 1, layer + 1))

    @property
    def total_bytes(self) -> int:
        """Stored bytes of all shards."""
        return sum(self.layer_bytes) + self.head_bytes


class Origin(StrEnum):
    """The origin of the division into layer shards."""

    PLANNED = "planned"
    PRESET = "preset"
    OVERRIDE = "override"


@dataclass(frozen=True)
class TopologyPlan:
    """A topology, the stack that it divides, and the reasons.

    `preset` is the one that was used, or that an override replaced. `heads_asked`: the user gave the number
    of head shards. `functions` is the number of functions in each layer shard.
    """

    topology: Topology
    stack: StackSizes
    target: Target
    origin: Origin
    preset: PresetChoice | None
    heads_asked: bool
    reasons: tuple[str, ...]
    functions: int = 1

    @property
    def layer_shard_bytes(self) -> tuple[int, ...]:
        """Stored bytes of each layer shard."""
        layer_bytes = self.stack.layer_bytes
        return tuple(sum(layer_bytes[r.start : r.stop]) for r in self.topology.layer_ranges)

    @property
    def head_shard_bytes(self) -> tuple[int, ...]:
        """Stored bytes of each head shard."""
        stack = self.stack
        return tuple(stack.head_bytes * len(tokens) // stack.vocabulary for tokens in self.topology.heads)


def plan_topology(
    stack: StackSizes,
    target: Target,
    *,
    preset: PresetChoice | None = None,
    override: tuple[int, ...] | None = None,
    head_shards: int | None = None,
    shard_bytes: int | None = None,
    functions: int = 1,
) -> TopologyPlan:
    """Divide a stack into shards: by the override, else by the preset, else by the target's shard sizes.

    With `shard_bytes`, shards are filled up to that size, and a preset is used only if requested by name.

    Raises:
        RequestError: the layers of the override or the preset do not add up to the model's, a shard would end
            between layers that share K/V, or the number of head shards is impossible.
    """
    layers = len(stack.layer_bytes)
    if shard_bytes is not None and preset is not None and not preset.asked:
        preset = None
    if override is not None:
        if sum(override) != layers or min(override) < 1:
            raise RequestError(
                f"--topology {printable(','.join(map(str, override)))} adds up to "
                f"{printable(str(sum(override)))}, but the model has {layers} layers; "
                "every shard needs at least one"
            )
        counts, origin = override, Origin.OVERRIDE
        reasons = [f"--topology requests {'+'.join(map(str, override))} layers."]
        if preset is not None:
            reasons.append(f"It replaces the preset {preset.preset.name}.")
    elif preset is not None:
        if sum(preset.preset.topology) != layers:
            raise RequestError(
                f"--preset {preset.preset.name} is for {sum(preset.preset.topology)} layers, but the model "
                f"has {layers}; leave it out"
            )
        counts, origin, reasons = preset.preset.topology, Origin.PRESET, list(preset.reasons)
    else:
        limits = SHARD_LIMITS[target]
        if shard_bytes is not None:
            limits = replace(limits, planned_bytes=shard_bytes, reason="as --shard-bytes says")
        last = stack.last if limits.shards_are_free else frozenset()
        counts = group_layers(stack.layer_bytes, stack.kinds, limits, stack.joined, last)
        origin = Origin.PLANNED
        reasons = _planning_reasons(stack, counts, limits, last)
    if split := sorted(set(accumulate(counts)) & stack.joined):
        raise RequestError(
            f"a shard of {'+'.join(map(str, counts))} layers ends before layer {split[0]}, which attends to "
            f"the K/V of layer {stack.kv_layers[split[0]]}; the two must share a shard"
        )
    heads_asked = head_shards
    if heads_asked is None and preset is not None:
        heads_asked = preset.preset.head_shards
    planned_bytes = SHARD_LIMITS[target].planned_bytes if shard_bytes is None else shard_bytes
    heads, head_reason = _plan_heads(stack, heads_asked, planned_bytes)
    return TopologyPlan(
        Topology(counts, heads),
        stack,
        target,
        origin,
        preset,
        heads_asked is not None,
        (*reasons, head_reason),
        functions,
    )


def head_slices(tokens: range) -> tuple[range, ...]:
    """Return the tokens of each convolution of a head shard: equal parts of at most HEAD_CHANNELS tokens."""
    return _cut(tokens, -(-len(tokens) // HEAD_CHANNELS))


def _plan_heads(stack: StackSizes, asked: int | None, planned_bytes: int) -> tuple[tuple[range, ...], str]:
    """Return the tokens of each head shard, and the reason as a sentence."""
    vocabulary = stack.vocabulary
    shards = asked if asked is not None else max(1, min(vocabulary, -(-stack.head_bytes // planned_bytes)))
    if not 1 <= shards <= vocabulary:
        raise RequestError(f"--head-shards {shards} is not between 1 and the vocabulary's {vocabulary}")
    heads = _cut(range(vocabulary), shards)
    slices = sum(len(head_slices(tokens)) for tokens in heads)
    if asked is not None:
        why = ", as requested"
    elif shards > 1:
        why = f" of at most {bytes_text(planned_bytes)}"
    else:
        why = ", since each additional shard is another dispatch in every pass"
    return heads, (
        f"The head's {vocabulary} tokens are in {counted(shards, 'shard')}{why}. "
        f"{'Its' if shards == 1 else 'Their'} {counted(slices, 'convolution')} "
        f"{'has' if slices == 1 else 'have'} at most {HEAD_CHANNELS} channels, which every Neural Engine "
        f"measured so far takes ({HEAD_EVIDENCE})."
    )


def _cut(tokens: range, parts: int) -> tuple[range, ...]:
    """Divide `tokens` into `parts` consecutive parts whose sizes differ by at most one, larger ones first."""
    ends = accumulate(_even(len(tokens), parts))
    return tuple(range(a, b) for a, b in pairwise((tokens.start, *(tokens.start + end for end in ends))))


def group_layers(
    layer_bytes: Sequence[int],
    kinds: Sequence[str],
    limits: ShardLimits,
    joined: frozenset[int] = frozenset(),
    last: frozenset[int] = frozenset(),
) -> tuple[int, ...]:
    """Return the layers per shard, in order. A shard is a single layer, or fits the target's limit.

    No shard ends before a layer in `joined`, even if it exceeds the limit. Every layer in `last` ends its
    shard, unless the next is joined to it.

    Groupings are ranked by these criteria, in this order: the fewest shards that are too small, the fewest
    shards, the fewest that end within a repeating pattern of kinds, the most even sizes.
    """
    ends = pattern_ends(kinds)
    layers = len(layer_bytes)
    # One cost for the four criteria: one unit of a criterion outweighs all later criteria together.
    broken_cost = sum(layer_bytes) ** 2 + 1
    shard_cost = broken_cost * (layers + 1)
    small_cost = shard_cost * (layers + 1)
    best = [(0, 0)]
    for end in range(1, layers + 1):
        fixed_cost = shard_cost + (broken_cost if end < layers and end not in ends else 0)
        size, chosen = 0, (-1, 0)
        for start in range(end - 1, -1, -1):
            size += layer_bytes[start]
            if start in joined:
                continue
            too_large = size > limits.planned_bytes or (start in last and start < end - 1)
            if too_large and chosen[0] >= 0:
                break
            cost = best[start][0] + size * size + (small_cost if size < limits.smallest else 0)
            # Of equal costs the smallest last shard is kept, so that larger shards come first.
            if chosen[0] < 0 or cost < chosen[0]:
                chosen = cost, start
        best.append((chosen[0] + fixed_cost, chosen[1]))
    counts: list[int] = []
    end = len(layer_bytes)
    while end:
        start = best[end][1]
        counts.append(end - start)
        end = start
    return tuple(reversed(counts))


def pattern_ends(kinds: Sequence[str]) -> frozenset[int]:
    """Return the layers before which a repeating pattern of kinds is complete, so that a shard may end there.

    At each layer the pattern is the one whose whole repetitions, two at least, reach furthest, and the
    shortest of these. If no pattern repeats from a layer on, the layer is a pattern of its own.
    """
    ends: set[int] = set()
    place = 0
    while place < len(kinds):
        length, repetitions = max(
            ((n, _repetitions(kinds, place, n)) for n in range(1, LONGEST_PATTERN + 1)),
            key=lambda found: (found[0] * found[1] if found[1] > 1 else 0, -found[0]),
        )
        ends.update(range(place + length, place + length * repetitions + 1, length))
        place += length * repetitions
    return frozenset(ends)


def _repetitions(kinds: Sequence[str], place: int, length: int) -> int:
    """Return how many times the `length` kinds from `place` on occur there in succession."""
    count = 1
    pattern = kinds[place : place + length]
    while kinds[place + count * length : place + (count + 1) * length] == pattern:
        count += 1
    return count


def _planning_reasons(
    stack: StackSizes, counts: Sequence[int], limits: ShardLimits, last: frozenset[int]
) -> list[str]:
    reasons = [f"Shards are filled up to {bytes_text(limits.planned_bytes)}, {limits.reason}."]
    layers, total = counted(len(stack.layer_bytes), "layer"), bytes_text(sum(stack.layer_bytes))
    reasons.append(f"{layers}, {total} together, need {counted(len(counts), 'shard')}, filled evenly.")
    ends = pattern_ends(stack.kinds)
    if last:
        reasons.append(
            "A layer that chooses experts, or that attends in a model with recurrent layers, ends its shard, "
            "since the golden gate judges layers after it less sharply."
        )
    elif len(set(stack.kinds)) > 1:
        inside = [end for end in accumulate(counts) if end not in ends and end < len(stack.kinds)]
        reasons.append(
            "Every shard ends at the end of a repeating pattern of layer kinds."
            if not inside
            else f"Of the shards, {len(inside)} {'ends' if len(inside) == 1 else 'end'} within a repeating "
            "pattern of layer kinds, since ending with the pattern would need more shards."
        )
    return reasons


def describe_kinds(kinds: Iterable[str]) -> str:
    """Return the number of layers of each kind, such as `15 sliding, 3 full`."""
    return ", ".join(f"{count} {kind}" for kind, count in Counter(kinds).items())


def _even(total: int, parts: int) -> tuple[int, ...]:
    """Divide `total` into `parts` numbers that differ by at most one, larger ones first."""
    size, extra = divmod(total, parts)
    return tuple(size + (i < extra) for i in range(parts))
