"""What an artifact keeps of sequences from pass to pass: pools of slots, states, and how chunks are folded.

A part of the schema of `manifest.json` (see schema.Manifest).
"""

import math
from typing import Literal

from pydantic import Field

from anespec.manifests.fields import BASE_ALIGNMENT, Count, Index, Name, Record, Slots
from anespec.manifests.graph_choices import KVForm


class TensorSpec(Record):
    """An input or output of a shard. A None dimension is T; a function has its own layout of channels."""

    name: Name
    shape: tuple[Count | None, ...]
    dtype: Literal["fp16", "int32"] = "fp16"


class KVCacheGroup(Record):
    """A pool: the layers that share one mapping of positions to slots.

    `region_slots` is the number of slots of one sequence. A `window` of None means that every earlier
    position is visible. `mask_input` is the name of the shard input for the slots that rows see (see
    `mask_spec`), `write_input` that of the input for the slots that a pass writes (see `write_spec`).

    `reads` says how rows read the slots. With taps the pool is for convolutions, whose rows read each of
    `window` positions by itself. With chunk it is for recurrent layers: a region has C slots, position p is
    in slot p mod C of it, and a row sees its own chunk from position p - p mod C on. `live_input` names the
    input that only a chunk pool has (see `live_spec`).
    """

    name: Name
    slots: Slots
    region_slots: Slots
    window: Count | None = None
    mask_input: Name
    write_input: Name
    reads: Literal["mask", "taps", "chunk"] = Field(
        default="mask", exclude_if=lambda reads: reads == "mask", description="omitted if it is mask"
    )
    live_input: Name | None = Field(
        default=None, exclude_if=lambda name: name is None, description="only a chunk pool has one"
    )

    @property
    def mask_spec(self) -> TensorSpec:
        """The shard input for the slots that rows see.

        For attention it is a mask [1, 1, T, S]. For convolutions it is [1, window, T, S]: entry i of row t is
        one-hot at the slot of the position that is window - 1 - i before the row's, or zero before the text.
        For a chunk pool it is [1, sequences, T, C]: row t is one-hot at its region and its position's place
        in the chunk, and zero for pads.
        """
        if self.reads == "chunk":
            regions = self.slots // self.region_slots
            return TensorSpec(name=self.mask_input, shape=(1, regions, None, self.region_slots))
        entries = self.window if self.reads == "taps" else 1
        return TensorSpec(name=self.mask_input, shape=(1, entries, None, self.slots))

    @property
    def live_spec(self) -> TensorSpec | None:
        """The shard input [1, S] of a chunk pool for the slots that a pass may use; None for others.

        It is 1 for each region with rows in the pass, from its chunk's first slot to that of its last row,
        and 0 for all other slots.
        """
        if self.live_input is None:
            return None
        return TensorSpec(name=self.live_input, shape=(1, self.slots))

    def takes_positions(self, form: KVForm) -> bool:
        """Return whether a pass writes consecutive slots, those of pads too, without a mask.

        A chunk pool never does: pads behind a chunk's last row would have no slots.
        """
        return form is KVForm.AT_POSITION and self.reads != "chunk"

    def write_spec(self, form: KVForm) -> TensorSpec:
        """Return the shard input for the slots that a pass writes.

        It is a mask [1, 1, S, T] whose column t is one-hot at row t's slot, or zero. For a pool that takes
        positions it has the slots [T], which are consecutive.
        """
        if self.takes_positions(form):
            return TensorSpec(name=self.write_input, shape=(None,), dtype="int32")
        return TensorSpec(name=self.write_input, shape=(1, 1, self.slots, None))


def spare_slots(form: KVForm, t_max: int) -> int:
    """Return the number of slots at the end of every region that hold no token.

    AT_POSITION writes all rows of a pass to consecutive slots, also the pads after the last token. The pads
    write to these slots if the token has the last slot of a region or ring. A chunk pool has none, since its
    rows are written by masks.
    """
    return aligned(t_max - 1) if form is KVForm.AT_POSITION else 0


def aligned(slots: int) -> int:
    """Return `slots` rounded up to BASE_ALIGNMENT, so that every region's base is aligned."""
    return -(-slots // BASE_ALIGNMENT) * BASE_ALIGNMENT


NEW_ROWS = "new_"
"""The prefix to the name of a state that the host holds; it names the output with the pass's new rows."""

StateKind = Literal["kv", "latent", "conv", "ssd", "delta", "carried"]
"""What a state keeps (see StateSpec)."""


class StateSpec(Record):
    """What some layers keep by position: fp16 [n, heads, S, width] in the named pool.

    The `kind` kv is K or V, with n_kv heads of head_dim. The kind latent is what the keys and values of all
    heads are made of: one head with the channels of the latent, and behind them those of the rotated key. The
    kind conv is the inputs of convolutions, one head of as many channels. Entry e of the first axis belongs
    to `layers[e]`; a layer's K comes before its V. A state that the graph holds is a state of the shard's
    program. A state that the host holds is an input of this name and shape, which the shard only reads. The
    output NEW_ROWS + name, [n, heads, T, width], has the pass's rows, and the host writes row t into its home
    slot after the pass. This input and this output are not among the shard's `inputs` and `outputs`.
    A carried state has no such output.

    Recurrent layers have states of one entry in a chunk pool. Kept by position, in this order, are

    - for ssd (Mamba 2) B [1, groups, S, state], dt x [1, heads, S, head_dim] and the decays [1, 1, S, heads];
    - for delta (gated delta nets) keys [1, heads, S, key_dim], the fresh values [1, heads, S, value_dim], and
      decays and betas [1, 1, S, 2 heads]. Both last axes are padded with zeros to a multiple of NARROWEST.

    The kind carried is what such a layer remembers at the start of each sequence's chunk, [1, heads,
    sequences, size], with one slot for each region of its pool. Passes read it, and the host alone writes it
    (see Fold).
    """

    kind: StateKind = "kv"
    name: Name
    shape: tuple[Count, Count, Count, Count]
    pool: Name
    layers: tuple[Index, ...] = Field(min_length=1)
    held: Literal["graph", "host"] = "graph"

    @property
    def new_rows(self) -> str | None:
        """The name of the output with the pass's rows, if the host holds the state; None if passes only read
        it."""
        return None if self.kind == "carried" else NEW_ROWS + self.name

    @property
    def bytes(self) -> int:
        """The bytes of the state, two per number."""
        return 2 * math.prod(self.shape)


NARROWEST = 32
"""The last axis of a state of decays is a multiple of this: Neural Engines need it of states."""


def padded(width: int) -> int:
    """Return a width rounded up to NARROWEST."""
    return -(-width // NARROWEST) * NARROWEST


class Fold(Record):
    """How a layer's carried state moves on when a chunk is full, by the host, between passes.

    The state `carried` of a region becomes a function of the region's slots in the states `rows` and of
    itself: fold_ssd or fold_delta (runtime.kv.folding), as the kind says.
    """

    layer: Index
    kind: Literal["ssd", "delta"]
    rows: tuple[Name, ...] = Field(min_length=3, max_length=3, description="in the order of StateSpec")
    carried: Name
