"""What is measured: an artifact made from a GGUF, and blocks built by hand for its verifier."""

import re
from pathlib import Path

from anespec.convert.pipeline import convert
from anespec.convert.plan import ConversionPlan, ConvertOptions
from anespec.convert.source.model import SourceModel
from anespec.manifests.gguf_file import GGUFFile
from anespec.runtime.block import Block, Place, Row, RowKind, Verifier

ROOT = Path(__file__).resolve().parents[1]
ARTIFACTS = ROOT / "build" / "benchmarks"


def artifact_of(gguf: Path, options: ConvertOptions) -> Path:
    """Convert `gguf`, or find what an earlier benchmark converted with the same options."""
    said = re.sub(r"\W+", "-", f"{options.target}-{options.weights}-b{options.block}-c{options.context}")
    output = ARTIFACTS / f"{gguf.stem}-{said}.anespec"
    with GGUFFile(gguf) as file:
        convert(ConversionPlan(SourceModel(file), options), output, replace=True)
    return output


def block_of(tokens: list[int], position: int, *, wants_logits: bool = True) -> Block:
    """Rows of one sequence from `position` on, each in its home slot of region 0, seeing all before it."""
    rows = tuple(
        Row(RowKind.PROMPT, token, place, (Place(place, (range(place + 1),)),))
        for place, token in enumerate(tokens, position)
    )
    return Block(rows, wants_logits)


def prefill(verifier: Verifier, tokens: list[int]) -> None:
    """Run a prompt from position 0 in the widest passes; logits of the last pass only."""
    width = verifier.shape.t_max
    for start in range(0, len(tokens), width):
        last = start + width >= len(tokens)
        verifier.forward(block_of(tokens[start : start + width], start, wants_logits=last))
