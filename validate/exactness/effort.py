"""How much the exactness gate measures in its quick and its full form."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Form = Literal["quick", "full"]


@dataclass(frozen=True)
class Effort:
    """How much a form of the gate measures.

    `depths` are the starts of probes as shares of the context. A probe is one block and `tokens` more tokens
    long, and the model computes `past` tokens before it. The repeated pass runs `repeats` times. `alone`
    tokens run one row a pass. In `together` cases of a probe everything else changes at once. A form that is
    not `thorough` visits every lane, width and span, but not each with every token: a pass of a large model
    takes seconds, and `generate` waits for the quick form.
    """

    depths: tuple[float, ...]
    past: int
    tokens: int
    mixed_cuts: int
    thorough: bool
    repeats: int
    alone: int
    together: int


EFFORTS: Mapping[Form, Effort] = MappingProxyType(
    {
        "quick": Effort(
            depths=(0.5,), past=8, tokens=1, mixed_cuts=1, thorough=False, repeats=8, alone=5, together=2
        ),
        "full": Effort(
            depths=(0.0, 0.5, 1.0),
            past=32,
            tokens=28,
            mixed_cuts=4,
            thorough=True,
            repeats=80,
            alone=16,
            together=4,
        ),
    }
)
