"""The plan of a conversion: the options checked against the model, before any weight is read."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from anespec.convert.options import ConvertOptions
from anespec.convert.planning.shard_limits import SHARD_LIMITS
from anespec.convert.planning.topology import (
    StackSizes,
    Topology,
    TopologyPlan,
    choose_preset,
    head_slices,
    plan_topology,
)
from anespec.convert.source.facts import EMBEDDING, LayerFacts
from anespec.convert.source.model import PER_LAYER_EMBEDDING, PER_LAYER_PROJECTION, SourceModel
from anespec.convert.weights.encoding import Encoding, stored_bytes
from anespec.convert.weights.formats import choose
from anespec.manifests.channel_layout import DECLARED, ChannelLayout
from anespec.manifests.graph_choices import RangeDefault, ReshapeHint, range_widths
from anespec.manifests.presets import GraphForm, MatchedModel
from anespec.manifests.schema import (
    MAIN,
    MOST_SLOTS,
    AttentionShape,
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

WIDEST_CPU_PASS = 128
"""The portable backend's prefill uses wide passes where the exactness gate proves them equal."""

PREFILL_BLOCK = 64
"""Rows of a prefill pass for shapes of functions, by default."""

WIDE_LAYOUT = ChannelLayout.ROWS_LAST
"""The layout of a function for prefill: an activation of 64 rows and 8192 channels takes 1 MB so, and 33 MB
where a Neural Engine pads a last axis of one element."""


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
    """Return the shapes that the options select; a range that would hold a single width is static.

    Raises:
        RequestError: a prefill block is asked for where there is none, or it is no wider than the block, or
            wider than the context; or a default T or a hint for shapes that are no range.
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
        # A prompt's pass needs one row of logits, or none.
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


# The options of a conversion, completed with what was measured on a machine (`--tuned`).

OF_ONE_MODEL = ("topology", "head_shards")
"""Choices that hold for the model alone that they were measured with."""

OF_RANGES = ("range_default", "reshape_hint")
"""Choices that are for shapes of a range alone."""


@dataclass(frozen=True)
class TunedOptions:
    """Options without `tuned`, and what was taken from there or left, in sentences."""

    options: ConvertOptions
    notes: tuple[str, ...] = ()


def with_tuned(options: ConvertOptions, model: MatchedModel) -> TunedOptions:
    """The options, with the measured choices in place of those that nobody gave.

    Raises:
        RequestError: the file holds no choices, or they are for another target.
        StorageError: the file cannot be read.
    """
    if options.tuned is None:
        return TunedOptions(options)
    choices = read_choices(options.tuned)
    given = options.model_fields_set
    if "target" in given and options.target is not choices.target:
        raise RequestError(
            f"{options.tuned}: was measured for --target {choices.target}, not {options.target}; "
            "leave --tuned or --target out"
        )
    wanted: dict[str, Any] = {
        name: value for name in CHOICES if (value := getattr(choices, name)) is not None
    }
    left_out = () if choices.model == model else OF_ONE_MODEL
    taken = {name: wanted[name] for name in wanted if name not in given and name not in left_out}
    block, prefill = taken.get("block", options.block), taken.get("prefill_block")
    narrow = prefill is not None and prefill <= block
    shapes = taken.get("shapes", options.shapes) or Shapes.RANGE
    if narrow or shapes is not Shapes.FUNCTIONS:
        taken.pop("prefill_block", None)
    for name in OF_RANGES if shapes is not Shapes.RANGE else ():
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
        notes.append(f"{name} recommends {_listed(overruled, wanted)}, but the command line says otherwise")
    foreign = [choice for choice in OF_ONE_MODEL if choice in wanted and choice not in {*taken, *overruled}]
    if foreign:
        notes.append(f"{name}: {_listed(foreign, wanted)} is for another model, and is left out")
    return notes or [f"{name} recommends nothing for this conversion"]


def _listed(choices: list[str], values: dict[str, object]) -> str:
    return ", ".join(" ".join(as_typed(choice, values[choice])) for choice in choices)


KV_FORMS: Mapping[Target, KVForm] = MappingProxyType(
    {Target.MAC: KVForm.SLICE_UPDATE, Target.IPHONE: KVForm.PACKED, Target.CPU: KVForm.REREAD}
)
"""The default forms; docs/graph.md gives the reasons."""


class ConversionPlan:
    """A model and the options, checked against each other: everything but the bytes.

    `options` are complete: what `--tuned` names is taken over, and `tuning_notes` say what of it.
    `has_usual_context` tells whether the context is the one that options without any would have.

    Raises from the constructor:
        RequestError: the options do not fit the model, or name a report that holds no choices.
        StorageError: that report cannot be read.
        UnsupportedModelError: the model cannot be built at this context.
    """

    def __init__(self, model: SourceModel, options: ConvertOptions) -> None:
        sizes = model.sizes
        measured_as = MatchedModel.of(model.facts.family.architecture, sizes)
        tuned = with_tuned(options, measured_as)
        options = tuned.options
        usual = max(options.block, min(SHARD_LIMITS[options.target].context, sizes.trained_context))
        context = options.context or usual
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
                f"--context {context} times --sequences {options.sequences} asks for more than the "
                f"{MOST_SLOTS} slots that a state can have"
            )
        layers = model.facts.layers
        self._pools = {window: self._pool(window) for window in {layer.window for layer in layers}}
        self._ropes = {layer.index: self._rope_tables(layer) for layer in layers}
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
        """Return the parts that the topology divides."""
        layers = self.model.facts.layers
        return StackSizes(
            layer_bytes=tuple(self.layer_bytes(layer) for layer in layers),
            kinds=tuple(layer.kind for layer in layers),
            vocabulary=self.model.facts.vocabulary,
            head_bytes=self.head_bytes(),
            kv_layers=tuple(layer.kv_layer for layer in layers),
        )

    @property
    def topology(self) -> Topology:
        """The division of layers and vocabulary; `sharding` gives the reasons."""
        return self.sharding.topology

    @property
    def beyond_training(self) -> bool:
        """Whether the context is longer than the trained context."""
        return self.context > aligned(self.model.sizes.trained_context)

    @property
    def pools(self) -> tuple[KVCacheGroup, ...]:
        """Every pool, `global` first."""
        return tuple(sorted(self._pools.values(), key=lambda pool: (pool.window is not None, pool.name)))

    def pool_of(self, layer: LayerFacts) -> KVCacheGroup:
        """The pool that holds a layer's K/V."""
        return self._pools[layer.window]

    @property
    def ropes(self) -> tuple[RopeTable, ...]:
        """Every rope table, each once."""
        tables = (table for pair in self._ropes.values() for table in pair if table is not None)
        return tuple({table.cos_input: table for table in tables}.values())

    def ropes_of(self, layer: LayerFacts) -> tuple[RopeTable | None, RopeTable | None]:
        """A layer's tables for queries and for keys; None where nothing rotates."""
        return self._ropes[layer.index]

    def _pool(self, window: int | None) -> KVCacheGroup:
        """The slots of layers that see `window` positions: a ring where that is less than the context.

        Behind the slots of tokens stand the spare ones that the form needs.
        """
        if window is None:
            region, ending = self.context, ""
        else:
            # A pass writes all its rows before any is read: the first row's window must survive them.
            region, ending = min(self.context, aligned(window + self.passes.t_max)), "_local"
        region += spare_slots(self.kv_form, self.passes.t_max)
        written = "kv_position" if self.kv_form is KVForm.AT_POSITION else "kv_write_mask"
        return KVCacheGroup(
            name="global" if window is None else "local",
            slots=region * self.options.sequences,
            region_slots=region,
            window=window,
            mask_input=f"attn_mask{ending}",
            write_input=f"{written}{ending}",
        )

    def _rope_tables(self, layer: LayerFacts) -> tuple[RopeTable | None, RopeTable | None]:
        angles = self.model.angles(layer, self.context)
        if angles is None:
            return None, None
        ending = "_local" if layer.slides else ""
        key = RopeTable(
            cos_input=f"rope_cos{ending}",
            sin_input=f"rope_sin{ending}",
            frequencies=angles.frequencies,
            magnitude=angles.magnitude,
        )
        temperature = self.model.temperature(self.context)
        if temperature is None:
            return key, key
        if layer.rotary_dim != layer.head_dim:
            # The rope rows of queries carry the growth, and what does not rotate would miss it.
            raise UnsupportedModelError(
                f"{self.model.file.path}: scores that grow with the position need heads that rotate whole, "
                f"not {layer.rotary_dim} of {layer.head_dim} dimensions"
            )
        names = {"cos_input": f"rope_cos_query{ending}", "sin_input": f"rope_sin_query{ending}"}
        grown = {"temperature": temperature.scale, "temperature_step": temperature.step}
        return key.model_copy(update=names | grown), key

    def layer_bytes(self, layer: LayerFacts) -> int:
        """Stored bytes of a layer's projections in the chosen weight formats."""
        return sum(self._layer_matrix_bytes(layer))

    def _layer_matrix_bytes(self, layer: LayerFacts) -> list[int]:
        return [stored_bytes(encoding, shape) for encoding, shape in self._layer_encodings(layer)]

    def head_bytes(self) -> int:
        """Stored bytes of the whole output projection."""
        return stored_bytes(*self._head_encoding())

    def weight_bytes(self) -> int:
        """Stored bytes of all shards: what a run has to write."""
        return sum(self.layer_bytes(layer) for layer in self.model.facts.layers) + self.head_bytes()

    def encodings(self) -> Iterator[tuple[Encoding, tuple[int, int]]]:
        """Yield the encoding of every projection, and its shape (out, in)."""
        for layer in self.model.facts.layers:
            yield from self._layer_encodings(layer)
        yield self._head_encoding()

    def _layer_encodings(self, layer: LayerFacts) -> Iterator[tuple[Encoding, tuple[int, int]]]:
        model, width = self.model, self.model.facts.per_layer_width
        for role, shape in model.matrices(layer).items():
            yield self._encoding(model.tensor_rows(layer, role).name, role, shape[1]), shape
        if width:
            shape = (width, model.facts.hidden_size)
            yield self._encoding(PER_LAYER_PROJECTION, PER_LAYER, shape[1]), shape

    def _head_encoding(self) -> tuple[Encoding, tuple[int, int]]:
        facts = self.model.facts
        shape = (facts.vocabulary, facts.hidden_size)
        return self._encoding(self.model.head_tensor, HEAD, facts.hidden_size), shape

    def largest_matrix_bytes(self) -> int:
        """Stored bytes of the largest projection: what a conversion holds at once."""
        slices = [len(part) for tokens in self.topology.heads for part in head_slices(tokens)]
        layers = (self._layer_matrix_bytes(layer) for layer in self.model.facts.layers)
        widest = self.head_bytes() * max(slices) // self.model.facts.vocabulary
        return max(widest, *(max(sizes) for sizes in layers))

    def _encoding(self, tensor: str, kind: str, width: int) -> Encoding:
        asked = self.options.weights.format_of(kind)
        kind_there = self.model.file.info(tensor).kind
        return choose(asked, width, kind_there, self.options.target).encoding

    def tokens_bytes(self) -> int:
        """Bytes of the embedding tables as the source stores them."""
        tensors = self.model.file.tensors
        return sum(tensors[name].nbytes for name in (EMBEDDING, PER_LAYER_EMBEDDING) if name in tensors)

    def estimated_bytes(self) -> int:
        """Bytes of the artifact, vocabulary and graph text left out."""
        return self.weight_bytes() + self.tokens_bytes()

    def state_bytes(self) -> int:
        """Bytes of the KV state in memory."""
        return sum(
            2 * 2 * layer.kv_heads * layer.head_dim * self.pool_of(layer).slots
            for layer in self.model.facts.layers
            if layer.owns_kv
        )
