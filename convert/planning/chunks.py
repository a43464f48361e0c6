"""Choose the positions of a chunk of recurrent layers, and how gated delta nets solve for its rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from anespec.convert.options import ConvertOptions
from anespec.convert.source.facts import DeltaFacts, ModelFacts
from anespec.manifests.graph_choices import ChunkSolve
from anespec.manifests.schema import Target
from anespec.system.errors import RequestError

SSD_CHUNK, DELTA_CHUNK = 64, 32
"""The positions of a chunk: of models whose recurrent layers are all Mamba 2, and of others.

A longer chunk loses fewer drafted rows at its end and reads a prompt in fewer passes. It makes every pass of
a delta net slower, which solves a system of that many rows: with 64 it took twice as long as with 32
(docs/graph.md). `anespec tune` also tries 16 and 8.
"""

SOLVES: Mapping[Target, ChunkSolve] = MappingProxyType(
    {
        Target.MAC: ChunkSolve.BROADCAST,
        Target.IPHONE: ChunkSolve.BROADCAST,
        Target.CPU: ChunkSolve.PRODUCTS,
    }
)
"""How delta nets solve by target. On a Neural Engine systems of 8 rows solved by broadcasts were fastest. As
matrix products the compiler gave up on them, and they ran on the GPU (B: anemll-forge SESSION_LESSONS)."""


@dataclass(frozen=True)
class ChunkPlan:
    """The positions of a chunk, and how delta nets solve for its rows; None without delta nets."""

    positions: int
    solve: ChunkSolve | None


def plan_chunks(facts: ModelFacts, options: ConvertOptions) -> ChunkPlan | None:
    """Return the chunks of a model; None without recurrent layers.

    Raises:
        RequestError: an option is for layers that the model does not have.
    """
    has_delta_nets = any(isinstance(mixer, DeltaFacts) for mixer in facts.recurrences)
    if options.chunk is not None and not facts.recurrences:
        raise RequestError("--chunk is for models with recurrent layers, and this one has none; leave it out")
    if options.chunk_solve is not None and not has_delta_nets:
        raise RequestError(
            "--chunk-solve is for models with gated delta nets, and this one has none; leave it out"
        )
    if not facts.recurrences:
        return None
    if not has_delta_nets:
        return ChunkPlan(options.chunk or SSD_CHUNK, None)
    return ChunkPlan(options.chunk or DELTA_CHUNK, options.chunk_solve or SOLVES[options.target])
