"""The sizes of the networks, and how the architectures differ that they can have."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

ATTENTION_PERIOD = 3
"""In a hybrid, every third layer has attention."""


@dataclass(frozen=True)
class Style:
    """How llama.cpp defines an architecture, as far as it differs from `llama`.

    `neox`: the halves of a head rotate together, not neighbours. `head_norms`: queries and keys are normed.
    `output_gate`: the projection of queries has a gate for each head's output. `mlp_norm` and `final_norm`
    are the names of norms.
    """

    hybrid: bool = True
    neox: bool = True
    head_norms: bool = True
    output_gate: bool = False
    mlp_norm: str = "ffn_norm"
    final_norm: str = "output_norm"


STYLES: Mapping[str, Style] = MappingProxyType(
    {
        "llama": Style(hybrid=False, neox=False, head_norms=False),
        "lfm2": Style(final_norm="token_embd_norm"),
        "granitehybrid": Style(neox=False, head_norms=False),
        "qwen35": Style(output_gate=True, mlp_norm="post_attention_norm"),
    }
)
"""The architectures. In layers without attention, `lfm2` has a gated short convolution, `granitehybrid` Mamba
2, and `qwen35` a gated delta net."""


@dataclass(frozen=True)
class Shape:
    """The hyperparameters. Row lengths must be multiples of 32 for Q8_0.

    `taps` and `state` (the channels of a head) are sizes of recurrent layers.
    """

    vocabulary: int = 2048
    width: int = 256
    layers: int = 6
    heads: int = 8
    kv_heads: int = 4
    feed_forward: int = 704
    context: int = 1024
    rope_base: float = 10000.0
    norm_epsilon: float = 1e-5
    architecture: str = "llama"
    taps: int = 4
    state: int = 32

    @property
    def style(self) -> Style:
        """The architecture's differences."""
        return STYLES[self.architecture]

    @property
    def head_dim(self) -> int:
        """The dimensions of an attention head."""
        return self.width // self.heads

    @property
    def inner(self) -> int:
        """The channels of all heads of a recurrent layer; llama.cpp wants those of Granite."""
        return 2 * self.width if self.architecture == "granitehybrid" else self.width

    @property
    def recurrent_heads(self) -> int:
        """The heads of a recurrent layer."""
        return self.inner // self.state

    @property
    def groups(self) -> int:
        """One B and C for all heads of Mamba 2, and the keys of a delta net, one for two heads."""
        return self.recurrent_heads // 2 if self.architecture == "qwen35" else 1

    def attends(self, layer: int) -> bool:
        """Return whether a layer has attention."""
        return not self.style.hybrid or (layer + 1) % ATTENTION_PERIOD == 0
