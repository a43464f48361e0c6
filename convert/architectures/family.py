"""What distinguishes one model family from another, as data.

Tensor names are GGUF's own (https://github.com/ggml-org/llama.cpp, gguf-py constants): they are the
same for every family, so a family only says which of them it has and how they are laid out.
"""

from dataclasses import dataclass
from enum import StrEnum


class RopeLayout(StrEnum):
    """How the GGUF orders the rows of q and k within a head.

    `INTERLEAVED`: rows 2i and 2i + 1 rotate together (GGML's NORM rope). `HALVES`: rows i and
    i + rotary_dim / 2 do (NEOX). The block graph always uses halves; the converter reorders rows.
    """

    INTERLEAVED = "interleaved"
    HALVES = "halves"


@dataclass(frozen=True)
class Family:
    """One `general.architecture` of GGUF, as far as it differs from a plain Llama layer."""

    architecture: str
    title: str
    rope_layout: RopeLayout
