"""The options of a conversion, declared once for Python and the command line."""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from anespec.convert.weights.targets import require_fit
from anespec.manifests.channel_layout import ChannelLayout
from anespec.manifests.graph_choices import ChunkSolve, RangeDefault, ReshapeHint
from anespec.manifests.presets import NO_PRESET, preset_names
from anespec.manifests.schema import (
    MAX_BLOCK,
    MOST_ROWS,
    AttentionShape,
    HeadOutputs,
    KVForm,
    Shapes,
    Target,
    WeightFormat,
)
from anespec.manifests.usual_target import usual_target
from anespec.manifests.weight_choice import GROUPS, KINDS, WeightChoice, read_choice
from anespec.system.errors import RequestError
from anespec.system.options import Flag, Options, read_size


def _read_counts(value: Any) -> Any:
    """Parse `20,4,6,2` or `20+4+6+2` into integers."""
    if not isinstance(value, str):
        return value
    try:
        return tuple(int(part) for part in value.replace("+", ",").split(","))
    except ValueError:
        raise RequestError(f"{value[:40]!r} is not a list of layer counts such as 20,4,6,2") from None


class ConvertOptions(Options):
    """The options of a conversion. None means that the target or the model determines the value."""

    target: Target = Field(
        default=usual_target(),
        description="What to build for: the Neural Engine of a Mac or an iPhone, or a processor with the "
        "portable backend. The default is this machine.",
    )
    block: int = Field(
        default=4, ge=1, le=MAX_BLOCK, description="Rows (T) of a decoding pass: the last token, and drafts."
    )
    shapes: Annotated[Shapes | None, Flag(default="range")] = Field(
        default=None,
        description="How many rows (T) the shards take: range, any number up to a maximum; static, only the "
        "block; functions, the block in one function and a prompt's pass in another, which share weights and "
        "states.",
    )
    prefill_block: Annotated[int | None, Flag(default="64")] = Field(
        default=None,
        ge=2,
        le=MOST_ROWS,
        description="Rows of a pass that reads a prompt, with --shapes functions.",
    )
    range_default: Annotated[RangeDefault | None, Flag(default="1")] = Field(
        default=None,
        description="Rows (T) of the default shape, with --shapes range: one, as in the range that was "
        "measured on the Neural Engine, or the block.",
    )
    reshape_hint: Annotated[ReshapeHint | None, Flag(default="none")] = Field(
        default=None,
        description="How often Core ML is told that the number of rows changes, with --shapes range: not at "
        "all (none, as measured), frequent or infrequent.",
    )
    layout: Annotated[ChannelLayout | None, Flag(default="rows_third")] = Field(
        default=None,
        description="The axis of the rows in hidden states and logits: third, [1, C, T, 1], or last, "
        "[1, C, 1, T]. In a prompt's function (--shapes functions) it is always the last.",
    )
    context: Annotated[
        int | None,
        Flag(
            default="what the model was trained for, at most 2048 (iphone: 1024; cpu: 16384, or less where "
            "memory is small)"
        ),
    ] = Field(default=None, ge=1, description="Tokens per sequence, rounded up to 64.")
    sequences: int = Field(default=1, ge=1, description="How many sequences the state holds at a time.")
    weights: Annotated[WeightChoice, BeforeValidator(read_choice), Flag(metavar="FORMAT[,KIND=FORMAT…]")] = (
        Field(
            default=WeightChoice(),
            description=f"How weights are stored: {', '.join(WeightFormat)} (those with block: --target cpu "
            "only); a kind of weight can have another format, as in int8-channel,head=lut6. Kinds: "
            f"{', '.join(KINDS)}; groups of kinds: {', '.join(GROUPS)}.",
        )
    )
    attention: Annotated[
        AttentionShape | None, Flag(default="per_kv_head for mac and iphone, grouped for cpu")
    ] = Field(
        default=None, description="How attention is written: an operation per KV head, or all heads in one."
    )
    kv_form: Annotated[
        KVForm | None, Flag(default="slice_update for mac, packed for iphone, reread for cpu")
    ] = Field(
        default=None,
        description="How keys and values are kept: in states that attention reads again (reread) or not "
        "(blended; slice_update, written with constant bounds), in one or two states a shard (packed), by "
        "the host (outside), or in states of which a pass writes no more than its own rows (at_position).",
    )
    chunk: Annotated[int | None, Flag(default="32, or 64 if all recurrent layers are Mamba 2")] = Field(
        default=None,
        ge=8,
        le=64,
        multiple_of=8,
        description="Positions after which recurrent layers fold their rows into a state, a multiple of 8 "
        "up to 64. Runs of drafts end there.",
    )
    chunk_solve: Annotated[
        ChunkSolve | None, Flag(default="broadcast for mac and iphone, products for cpu")
    ] = Field(
        default=None,
        description="How gated delta nets solve for what the rows of a chunk write: by matrix products, or, "
        "within blocks of eight rows, by products of elements and their sums (broadcast).",
    )
    hidden_scale: Annotated[
        float | None, Flag(default="1, or what the family is known to need, such as 1/32 for Gemma 3")
    ] = Field(
        default=None,
        ge=0.001,
        le=1,
        description="Factor of the hidden state, a power of two, for models whose own leaves fp16's range.",
    )
    topology: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...] | None,
        BeforeValidator(_read_counts),
        Flag(metavar="N,N,…"),
    ] = Field(default=None, min_length=1, description="Layers per shard, e.g. 20,4,6,2.")
    head_shards: int | None = Field(
        default=None, ge=1, description="Number of shards for the output layer (head)."
    )
    head_outputs: Annotated[HeadOutputs | None, Flag(default="logits")] = Field(
        default=None,
        description="What the head can return: all logits (logits), or, with a second function, also only "
        "the best token of each slice of the vocabulary (argmax), for passes that need no more.",
    )
    preset: Annotated[
        str | None,
        Flag(choices=(*preset_names(), NO_PRESET), default="the preset that fits, if there is one"),
    ] = Field(default=None, description="Use the topology that was measured for a model.")
    shard_bytes: Annotated[
        int | None,
        BeforeValidator(read_size),
        Flag(metavar="BYTES", default="what is known to run on the target"),
    ] = Field(default=None, ge=1, description="Maximum bytes of weights in a shard, as in 500MB.")
    tuned: Annotated[Path | None, Flag(metavar="REPORT")] = Field(
        default=None,
        description="Use the options that `anespec selftest` or `anespec tune` recommended in this file, "
        "unless they are given here.",
    )

    @model_validator(mode="after")
    def _weights_for_the_target(self) -> Self:
        # With `tuned` the target may change, and the completed options are checked again.
        if self.tuned is None:
            require_fit(self.weights, self.target)
        return self
