"""The sizes of attention, and its tensors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anespec.convert.families.family import HeadNorm
from anespec.convert.mixers.kept import PoolKind, Store
from anespec.convert.mixers.tensors import Expected, ModelTensors, tensor_name

Q, K, V, ATTENTION_OUTPUT = "attn_q", "attn_k", "attn_v", "attn_output"
Q_NORM, K_NORM = "attn_q_norm", "attn_k_norm"
FUSED_QKV = "attn_qkv"
OUTPUT_GATE = "attn_gate"
SINKS = "attn_sinks"
"""Roles of the tensors of attention, by their names in GGUF."""


@dataclass(frozen=True)
class AttentionFacts:
    """The sizes of the attention of layer `index`. `window` is None if every earlier position is visible.

    `rotary_dim` is 0 without rope. `scale` multiplies the scores. `kv_layer` is the layer to whose keys and
    values it attends: its own, or an earlier one.
    """

    index: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    window: int | None
    scale: float
    kv_layer: int

    @property
    def slides(self) -> bool:
        """Whether the layer has a window."""
        return self.window is not None

    @property
    def kind(self) -> str:
        """A label for mixers whose graphs are the same apart from sizes."""
        sees = "sliding" if self.slides else "full"
        rope = "" if self.rotary_dim else ", no rope"
        return sees + rope + ("" if self.owns_kv else ", shared K/V")

    @property
    def owns_kv(self) -> bool:
        """Whether the layer computes keys and values of its own."""
        return self.kv_layer == self.index

    @property
    def stores(self) -> Sequence[Store]:
        """What it has in slots: keys and values."""
        read = 2 * self.kv_heads * self.head_dim
        return (Store(PoolKind("mask", self.window), read, read if self.owns_kv else 0),)

    @property
    def carried(self) -> int:
        """The numbers that it carries from chunk to chunk."""
        return 0

    def matrices(self, model: ModelTensors) -> dict[str, tuple[int, int]]:
        """Return the shapes (out, in) of the projections by role."""
        family, hidden_size = model.family, model.hidden_size
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        own = {K: (kv, hidden_size), V: (kv, hidden_size)} if self.owns_kv else {}
        if self.value_is_key(model):
            del own[V]
        gate_rows = self.heads if family.gates_heads else q
        return {
            Q: (family.query_parts * q, hidden_size),
            **own,
            ATTENTION_OUTPUT: (hidden_size, q),
            **({OUTPUT_GATE: (gate_rows, hidden_size)} if family.output_gate else {}),
        }

    def tensors(self, model: ModelTensors) -> Iterator[Expected]:
        """Yield the tensors that are no projections."""
        kind, kv = model.family.head_norm, self.kv_heads * self.head_dim
        if model.family.sinks:
            yield tensor_name(self, SINKS), ((self.heads,), False)
        if not self.owns_kv:
            # A layer that attends to another layer's K/V may still have K/V tensors, which are not used.
            for role in (K, V):
                yield tensor_name(self, role), ((kv, model.hidden_size), True)
            yield tensor_name(self, K_NORM), ((self.head_dim,), True)
        for role, heads in self.head_norms(model).items():
            shape: tuple[int, ...] = (self.head_dim,)
            if kind is HeadNorm.ALL_HEADS:
                shape = (heads * self.head_dim,)
            elif kind is HeadNorm.LAYER_BEFORE_ROPE:
                shape = (heads, self.head_dim)
            yield tensor_name(self, role), (shape, False)

    def head_norms(self, model: ModelTensors) -> dict[str, int]:
        """Return the norms on q and k by role, with their numbers of heads."""
        kind = model.family.head_norm
        if kind is HeadNorm.NONE:
            return {}
        own = {K_NORM: self.kv_heads} if self.owns_kv else {}
        norms = {Q_NORM: self.heads, **own}
        if kind is not HeadNorm.LAYER_BEFORE_ROPE:
            return norms
        return {role: heads for role, heads in norms.items() if tensor_name(self, role) in model.infos}

    def value_is_key(self, model: ModelTensors) -> bool:
        """Return whether the layer's V is the output of its K projection, before norm and rope."""
        return model.family.key_is_value and self.owns_kv and tensor_name(self, V) not in model.infos
