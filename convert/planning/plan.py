"""Plan a conversion: check the options against the model before any weight is read."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from anespec.convert.mixers.kept import PoolKind
from anespec.convert.options import ConvertOptions
from anespec.convert.planning.chunks import ChunkPlan, plan_chunks
from anespec.convert.planning.experts import ExpertChoice, choose_experts
from anespec.convert.planning.shard_limits import SHARD_LIMITS
from anespec.convert.planning.topology import (
    StackSizes,
    Topology,
    TopologyPlan,
    choose_preset,
    head_slices,
    plan_topology,
)
from anespec.convert.source.experts import EXPERT_GATE, EXPERT_UP, MixtureFacts
from anespec.convert.source.facts import (
    EMBEDDING,
    POSITION_EMBEDDING,
    AttendingFacts,
    LayerFacts,
    MixerFacts,
)
from anespec.convert.source.matrix import block_kind, kind_and_number
from anespec.convert.source.model import PER_LAYER_EMBEDDING, PER_LAYER_PROJECTION, SourceModel
from anespec.convert.weights.encoding import Encoding, stored_bytes
from anespec.convert.weights.formats import choose
from anespec.manifests.channel_layout import DECLARED, ChannelLayout
from anespec.manifests.graph_choices import RangeDefault, ReshapeHint, range_widths
from anespec.manifests.presets import GraphForm, MatchedModel
from anespec.manifests.schema import (
    BASE_ALIGNMENT,
    MAIN,
    MOST_SLOTS,
    AttentionShape,
    ExpertForm,
    HeadOutputs,
    KVCacheGroup,
    KVForm,
    RopeTable,
    Shapes,
    ShardFunction,
    Target,
    aligned,
    spare_slots,
)
from anespec.manifests.tuned import CHOICES, TunedChoices, as_typed, read_choices
from anespec.manifests.weight_choice import HEAD, PER_LAYER
from anespec.system.errors import RequestError, UnsupportedModelError
from anespec.system.formatting import printable
from anespec.system.machine import machine_memory

WIDEST_CPU_PASS = 128
"""The widest pass for processors; prefill uses it if the exactness gate proves it equal."""

PREFILL_BLOCK = 64
"""The default rows of a prefill pass with --shapes functions."""

WIDE_LAYOUT = ChannelLayout.ROWS_LAST
"""The layout of a function for prefill.

An activation of 64 rows and 8192 channels then takes 1 MB. In the other layout it takes 33 MB if a Neural
Engine pads a last axis of one element.
"""


@dataclass(frozen=True)
class PassesPlan:
    """The kind of shapes, the functions of layer and head shards, and the widths of passes (see Manifest)."""

    shapes: Shapes
    functions: tuple[ShardFunction, ...]
    t_min: int
    t_max: int
    widths: tuple[int, ...]
    head_functions: tuple[ShardFunction, ...] | None = None
    range_default: RangeDefault = RangeDefault.BLOCK
    reshape_hint: ReshapeHint = ReshapeHint.NONE


def plan_passes(options: ConvertOptions, context: int) -> PassesPlan:
    """Return the shapes that the options select; a range with a single width becomes static.

    Raises:
        RequestError: a prefill block is given without --shapes functions, is not larger than the block, or is
            larger than the context; or a default T or a hint is given without --shapes range.
    """
    block, shapes, layout = options.block, options.shapes or Shapes.RANGE, options.layout or DECLARED
    if shapes is not Shapes.RANGE and (options.range_default or options.reshape_hint):
        raise RequestError(
            f"--range-default and --reshape-hint are for --shapes range; {shapes} shards have fixed shapes"
        )
    if shapes is Shapes.FUNCTIONS:
        prefill = options.prefill_block or PREFILL_BLOCK
        if not block < prefill <= context:
            raise RequestError(
                f"--prefill-block {prefill} must be more than the block ({block}) and no more than the "
                f"context ({context}); give another, or use --shapes static"
            )
        functions = tuple(
            ShardFunction(name=f"rows_{rows}", rows=rows, layout=own)
            for rows, own in ((block, layout), (prefill, WIDE_LAYOUT))
        )
        # A prompt's pass needs one row of logits at most, so heads need only the block's function.
        heads = (ShardFunction(name=MAIN, rows=block, layout=layout),)
        return PassesPlan(shapes, functions, block, prefill, (block, prefill), heads)
    if options.prefill_block is not None:
        raise RequestError(f"--prefill-block is for --shapes functions; {shapes} shards have one function")
    widest = max(block, WIDEST_CPU_PASS) if options.target is Target.CPU else block
    if shapes is Shapes.STATIC or widest == 1:
        return PassesPlan(
            Shapes.STATIC, (ShardFunction(name=MAIN, rows=block, layout=layout),), block, block, (block,)
        )
    return PassesPlan(
        shapes,
        (ShardFunction(name=MAIN, layout=layout),),
        1,
        widest,
        range_widths(block, 1, widest, few=options.target is not Target.CPU),
        range_default=options.range_default or RangeDefault.ONE,
        reshape_hint=options.reshape_hint or ReshapeHint.NONE,
    )


# With `--tuned` the options are completed with choices that were measured on a machine.

MODEL_CHOICES = ("topology", "head_shards", "chunk", "chunk_solve")
"""Choices that are valid only for the model with which they were measured."""

RANGE_CHOICES = ("range_default", "reshape_hint")
"""Choices that apply only to --shapes range."""


@dataclass(frozen=True)
class TunedOptions:
    """Options completed from `tuned`, and notes on the choices that were used or left out."""

    options: ConvertOptions
    notes: tuple[str, ...] = ()


def with_tuned(options: ConvertOptions, model: MatchedModel) -> TunedOptions:
    """Return the options with measured choices in place of options that were not given.

    Raises:
        RequestError: the file has no choices, or they are for another target.
        StorageError: the file cannot be read.
    """
    if options.tuned is None:
        return TunedOptions(options)
    choices = read_choices(options.tuned)
    given = options.model_fields_set
    if "target" in given and options.target is not choices.target:
        raise RequestError(
            f"{options.tuned}: was measured for --target {choices.target}, not {options.target}; "
            "leave out --tuned or --target"
        )
    wanted: dict[str, Any] = {
        name: value for name in CHOICES if (value := getattr(choices, name)) is not None
    }
    left_out = () if choices.model == model else MODEL_CHOICES
    taken = {name: wanted[name] for name in wanted if name not in given and name not in left_out}
    block, prefill = taken.get("block", options.block), taken.get("prefill_block")
    narrow = prefill is not None and prefill <= block
    shapes = taken.get("shapes", options.shapes) or Shapes.RANGE
    if narrow or shapes is not Shapes.FUNCTIONS:
        taken.pop("prefill_block", None)
    for name in RANGE_CHOICES if shapes is not Shapes.RANGE else ():
        taken.pop(name, None)
    return TunedOptions(
        options.with_changes(tuned=None, target=choices.target, **taken),
        tuple(_notes(options, choices, wanted, taken)),
    )


def _notes(
    options: ConvertOptions, choices: TunedChoices, wanted: dict[str, object], taken: dict[str, object]
) -> list[str]:
    name = options.tuned.name if options.tuned is not None else ""
    flags = _listed(list(taken), taken)
    notes = [f"from {name}, measured on {printable(choices.machine)}: {flags}"] if flags else []
    overruled = [choice for choice in wanted if choice in options.model_fields_set]
    if overruled:
        notes.append(f"{name} recommends {_listed(overruled, wanted)}, but the command line overrides it")
    foreign = [choice for choice in MODEL_CHOICES if choice in wanted and choice not in {*taken, *overruled}]
    if foreign:
        notes.append(f"{name}: {_listed(foreign, wanted)} is for another model, so it is left out")
    return notes or [f"{name} recommends nothing for this conversion"]


def _listed(choices: list[str], values: dict[str, object]) -> str:
    return ", ".join(" ".join(as_typed(choice, values[choice])) for choice in choices)


KV_FORMS: Mapping[Target, KVForm] = MappingProxyType(
    {Target.MAC: KVForm.SLICE_UPDATE, Target.IPHONE: KVForm.PACKED, Target.CPU: KVForm.REREAD}
)
"""The default K/V forms by target; docs/graph.md gives the reasons."""


STATE_SHARE = 1 / 8
"""The most of the machine's memory that the states of a default context may take."""

SHORTEST_USUAL = 2048
"""The default context where states are large: the shortest, unless the model was trained for less."""


def _usual_context(model: SourceModel, options: ConvertOptions) -> int:
    """Return the default number of tokens of a sequence; see ShardLimits."""
    context = min(SHARD_LIMITS[options.target].context, model.sizes.trained_context)
    stores = [store for mixer in model.facts.mixers for store in mixer.stores]
    token_bytes = 2 * sum(s.kept for s in stores if s.pool == PoolKind("mask", None))
    room = STATE_SHARE * machine_memory() / max(1, token_bytes * options.sequences)
    while context >= 2 * SHORTEST_USUAL and context > room:
        context //= 2
    return context


def _hidden_scale(model: SourceModel, options: ConvertOptions) -> float:
    """Return the factor of the hidden state in the graph; raises RequestError if it cannot be."""
    scale = model.facts.hidden_scale if options.hidden_scale is None else options.hidden_scale
    if math.frexp(scale)[0] != 0.5:
        raise RequestError(f"--hidden-scale {scale:g} is no power of two; give 1, 0.5, 0.25, …")
    if scale != 1 and model.facts.positions is not None:
        raise RequestError("--hidden-scale is not for models with learned positions; leave it out")
    return scale


class ConversionPlan:
    """A model and the options, checked against each other.

    `options` are completed from `--tuned`, and `tuning_notes` say how. `has_usual_context` is true if the
    context is the default one.

    Raises from the constructor:
        RequestError: the options do not fit the model, or the file of --tuned has no choices.
        StorageError: the file of --tuned cannot be read.
        UnsupportedModelError: the model cannot be built with this context.
    """

    def __init__(self, model: SourceModel, options: ConvertOptions) -> None:
        sizes = model.sizes
        measured_as = MatchedModel.of(model.facts.family.architecture, sizes)
        tuned = with_tuned(options, measured_as)
        options = tuned.options
        usual = max(options.block, _usual_context(model, options))
        if (positions := model.facts.positions) is not None:
            usual = min(usual, positions // BASE_ALIGNMENT * BASE_ALIGNMENT)
        context = options.context or usual
        if positions is not None and aligned(context) > positions:
            raise RequestError(
                f"--context {context} needs {aligned(context)} positions, but the model learned {positions}; "
                f"give at most {positions // BASE_ALIGNMENT * BASE_ALIGNMENT}"
            )
        if context < options.block:
            raise RequestError(f"--context {context} must be at least the block ({options.block})")
        self.model = model
        self.options = options
        self.tuning_notes = tuned.notes
        self.context = aligned(context)
        self.has_usual_context = self.context == aligned(usual)
        self.attention = options.attention or (
            AttentionShape.GROUPED if options.target is Target.CPU else AttentionShape.PER_KV_HEAD
        )
        self.kv_form = options.kv_form or KV_FORMS[options.target]
        self.head_outputs = options.head_outputs or HeadOutputs.LOGITS
        self.passes: PassesPlan = plan_passes(options, self.context)
        if (self.context + spare_slots(self.kv_form, self.passes.t_max)) * options.sequences > MOST_SLOTS:
            raise RequestError(
                f"--context {context} times --sequences {options.sequences} needs more than the "
                f"{MOST_SLOTS} slots that a state can have; reduce one of them"
            )
        self.hidden_scale = _hidden_scale(model, options)
        self.chunks: ChunkPlan | None = plan_chunks(model.facts, options)
        stores = [store for mixer in model.facts.mixers for store in mixer.stores]
        self._pools = {kind: self._pool(kind) for kind in {store.pool for store in stores}}
        self._ropes = {part.index: self._rope_tables(part) for part in model.facts.attentions}
        self._layer_bytes: dict[int, int] = {}
        self.experts: ExpertChoice | None = None
        self.experts = choose_experts(model, options.target, options.block, self.weight_bytes())
        self._layer_bytes.clear()
        self.sharding: TopologyPlan = plan_topology(
            self._stack(),
            options.target,
            preset=choose_preset(
                options.preset,
                measured_as,
                options.target,
                str(options.weights),
                GraphForm(
                    attention=self.attention,
                    kv_form=self.kv_form,
                    shapes=self.passes.shapes,
                    layout=self.passes.functions[0].layout,
                ),
            ),
            override=options.topology,
            head_shards=options.head_shards,
            functions=len(self.passes.functions),
            shard_bytes=options.shard_bytes,
        )

    def _stack(self) -> StackSizes:
        """Return the layers and the head, which the topology divides into shards."""
        facts = self.model.facts
        layers = facts.layers
        return StackSizes(
            layer_bytes=tuple(self.layer_bytes(layer) for layer in layers),
            kinds=tuple(layer.kind for layer in layers),
            vocabulary=self.model.facts.vocabulary,
            head_bytes=self.head_bytes(),
            kv_layers=tuple(
                min((mixer.kv_layer for mixer in layer.mixers), default=layer.index) for layer in layers
            ),
            last=frozenset(
                layer.index
                for layer in layers
                if isinstance(layer.mlp, MixtureFacts) or (facts.recurrences and layer.attention)
            ),
        )

    @property
    def topology(self) -> Topology:
        """The division of layers and vocabulary into shards; `sharding` has the reasons."""
        return self.sharding.topology

    @property
    def beyond_training(self) -> bool:
        """Whether the context is longer than the trained context."""
        return self.context > aligned(self.model.sizes.trained_context)

    @property
    def pools(self) -> tuple[KVCacheGroup, ...]:
        """All pools, `global` first."""

        def place(pool: KVCacheGroup) -> tuple[bool, bool, str]:
            return pool.reads == "chunk", pool.window is not None, pool.name

        return tuple(sorted(self._pools.values(), key=place))

    def pools_of(self, mixer: MixerFacts) -> tuple[KVCacheGroup, ...]:
        """Return the pools that hold what a mixer keeps of each row, one for each of its stores."""
        return tuple(self._pools[store.pool] for store in mixer.stores)

    @property
    def ropes(self) -> tuple[RopeTable, ...]:
        """All rope tables, without duplicates."""
        tables = (table for pair in self._ropes.values() for table in pair if table is not None)
        return tuple({table.cos_input: table for table in tables}.values())

    def ropes_of(self, attention: AttendingFacts) -> tuple[RopeTable | None, RopeTable | None]:
        """Return a layer's rope tables for queries and for keys; None without rope."""
        return self._ropes[attention.index]

    def _pool(self, kind: PoolKind) -> KVCacheGroup:
        """Return the pool of mixers that see `window` positions: a ring if that is shorter than the context.

        The spare slots that the K/V form needs come after the slots of tokens.
        """
        reads, window = kind.reads, kind.window
        if reads == "chunk":
            return self._chunk_pool()
        if reads == "taps":
            name, mask, ending = "taps", "taps", "_taps"
        else:
            name, ending = ("global", "") if window is None else ("local", "_local")
            mask = f"attn_mask{ending}"
        # A pass writes all its rows before it reads any, and must not overwrite the first row's window.
        ring = self.context if window is None else aligned(window + self.passes.t_max)
        region = min(self.context, ring)
        region += spare_slots(self.kv_form, self.passes.t_max)
        written = "kv_position" if self.kv_form is KVForm.AT_POSITION else "kv_write_mask"
        return KVCacheGroup(
            name=name,
            slots=region * self.options.sequences,
            region_slots=region,
            window=window,
            mask_input=mask,
            write_input=f"{written}{ending}",
            reads=reads,
        )

    def _chunk_pool(self) -> KVCacheGroup:
        chunk = 1 if self.chunks is None else self.chunks.positions
        return KVCacheGroup(
            name="chunk",
            slots=chunk * self.options.sequences,
            region_slots=chunk,
            mask_input="chunk_places",
            live_input="chunk_live",
            write_input="chunk_write",
            reads="chunk",
        )

    def _rope_tables(self, attention: AttendingFacts) -> tuple[RopeTable | None, RopeTable | None]:
        angles = self.model.angles(attention, self.context)
        if angles is None:
            return None, None
        ending = "_local" if attention.slides else ""
        key = RopeTable(
            cos_input=f"rope_cos{ending}",
            sin_input=f"rope_sin{ending}",
            frequencies=angles.frequencies,
            magnitude=angles.magnitude,
        )
        temperature = self.model.temperature(self.context)
        if temperature is None:
            return key, key
        if attention.rotary_dim != attention.head_dim:
            # The growth is in the rope rows of queries, so dimensions without rope would not get it.
            raise UnsupportedModelError(
                f"{self.model.file.path}: scores that grow with the position need rope on whole heads, "
                f"not on {attention.rotary_dim} of {attention.head_dim} dimensions"
            )
        names = {"cos_input": f"rope_cos_query{ending}", "sin_input": f"rope_sin_query{ending}"}
        grown = {"temperature": temperature.scale, "temperature_step": temperature.step}
        return key.model_copy(update=names | grown), key

    def layer_bytes(self, layer: LayerFacts) -> int:
        """Return the stored bytes of a layer's projections in the chosen weight formats."""
        if layer.index not in self._layer_bytes:
            # A mixture has hundreds of projections, and progress asks for each piece that is written.
            self._layer_bytes[layer.index] = sum(self._layer_matrix_bytes(layer))
        return self._layer_bytes[layer.index]

    def _layer_matrix_bytes(self, layer: LayerFacts) -> list[int]:
        return [stored_bytes(encoding, shape) for encoding, shape in self._layer_encodings(layer)]

    def head_bytes(self) -> int:
        """Return the stored bytes of the whole output projection."""
        return stored_bytes(*self._head_encoding())

    def weight_bytes(self) -> int:
        """Return the stored bytes of all shards."""
        return sum(self.layer_bytes(layer) for layer in self.model.facts.layers) + self.head_bytes()

    def encodings(self) -> Iterator[tuple[Encoding, tuple[int, int]]]:
        """Yield the encoding of every projection, and its shape (out, in)."""
        for layer in self.model.facts.layers:
            yield from self._layer_encodings(layer)
        yield self._head_encoding()

    def _layer_encodings(self, layer: LayerFacts) -> Iterator[tuple[Encoding, tuple[int, int]]]:
        model, width = self.model, self.model.facts.per_layer_width
        is_wide = self.experts is not None and self.experts.form is ExpertForm.WIDE
        for role, shape in model.matrices(layer).items():
            kind, number = kind_and_number(role)
            if is_wide and kind in (EXPERT_GATE, EXPERT_UP) and isinstance(layer.mlp, MixtureFacts):
                if number:
                    continue
                shape = (layer.mlp.experts * shape[0], shape[1])
            yield self._encoding(model.tensor_rows(layer, role).name, kind, shape[1]), shape
        if width:
            shape = (width, model.facts.hidden_size)
            yield self._encoding(PER_LAYER_PROJECTION, PER_LAYER, shape[1]), shape

    def _head_encoding(self) -> tuple[Encoding, tuple[int, int]]:
        facts = self.model.facts
        shape = (facts.vocabulary, facts.hidden_size)
        return self._encoding(self.model.head_tensor, HEAD, facts.hidden_size), shape

    def largest_matrix_bytes(self) -> int:
        """Return the stored bytes of the largest projection."""
        slices = [len(part) for tokens in self.topology.heads for part in head_slices(tokens)]
        layers = (self._layer_matrix_bytes(layer) for layer in self.model.facts.layers)
        widest = self.head_bytes() * max(slices) // self.model.facts.vocabulary
        return max(widest, *(max(sizes) for sizes in layers))

    def _encoding(self, tensor: str, kind: str, width: int) -> Encoding:
        asked = self.options.weights.format_of(kind)
        kind_there = block_kind(self.model.file, tensor)
        return choose(asked, width, kind_there, self.options.target).encoding

    def tokens_bytes(self) -> int:
        """Return the bytes of the embedding tables, as the GGUF stores them."""
        tensors, tables = self.model.file.tensors, (EMBEDDING, POSITION_EMBEDDING, PER_LAYER_EMBEDDING)
        return sum(tensors[name].nbytes for name in tables if name in tensors)

    def estimated_bytes(self) -> int:
        """Return the estimated bytes of the artifact, without the vocabulary and the graph."""
        return self.weight_bytes() + self.tokens_bytes()

    def state_bytes(self) -> int:
        """Return the bytes of the states in memory."""
        mixers = self.model.facts.mixers
        slots = sum(store.kept * self._pools[store.pool].slots for mixer in mixers for store in mixer.stores)
        return 2 * (slots + self.options.sequences * sum(mixer.carried for mixer in mixers))
