"""Measure the error of rounding to fp16 by operation: would keeping more of the scores in fp32 pay?

    python benchmarks/rounding.py [model.gguf …] [--seeds 5] [--json]

Every model (by default the two Gemma 4 files of the tests, and random ones of their sizes) runs a prompt of
random tokens on the torch table, once for each way of rounding: as shipped, and with some operations in fp32.
It prints the root mean square of the logits' error against the fp32 reference, relative to that of the
shipped rounding, and how many rows have another best token. Weights, rope tables and the hidden state between
shards are fp16 in every way.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from measure import emit, machine, show_table
from numpy.typing import NDArray
from smoke_options import command_line
from subjects import ROOT, artifact_of, pass_of
from torch import Tensor

from anespec.convert.options import ConvertOptions
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import Target, WeightFormat
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import OPENVINO, TORCH, open_verifier
from anespec.runtime.backends.portable.arguments import Arguments
from anespec.runtime.backends.portable.torch_cpu.table import TABLE, Lowering
from anespec.runtime.passes import run_rows
from anespec.validate.golden.reference import Reference

# The random models of a family come from the tests' support modules.
sys.path.append(str(ROOT / "tests" / "support"))
from family_files import FAMILIES, Variant

BASES = ("gemma4", "gemma4-ple")
CONTEXT, TOKENS = 192, 120
Floats = NDArray[np.float32]
Rounds = Callable[[str, Tensor], bool]
"""Returns whether the result of an operation of some kind is rounded."""


def _is_score(kind: str, x: Tensor) -> bool:
    """Return whether x is a product of queries and keys, perhaps with the mask added: [1, heads, T, S]."""
    return kind in ("matmul", "add") and x.shape[-1] == CONTEXT


def _is_of_attention(kind: str, x: Tensor) -> bool:
    """Return whether x lies between the projections.

    These are norms and rope [1, heads, T, head_dim], slots, scores and softmax.
    """
    return x.ndim == 4 and (x.shape[-1] == CONTEXT or x.shape[2] == CONTEXT or x.shape[-1] > 1)


WAYS: Mapping[str, Rounds] = {
    "as shipped": lambda kind, x: True,
    "scores in fp32": lambda kind, x: not _is_score(kind, x),
    "attention in fp32": lambda kind, x: not _is_of_attention(kind, x),
    "all else in fp32": _is_of_attention,
    "all in fp32": lambda kind, x: False,
}
OPENVINO_WAY = "openvino, which computes in f32"


class _Wide(Arguments[Tensor]):
    """Arguments whose values are widened to fp32."""

    def __init__(self, arguments: Arguments[Tensor]) -> None:
        self.__dict__.update(arguments.__dict__)

    def value(self, name: str) -> Tensor:
        return super().value(name).float()

    def values(self, name: str) -> list[Tensor]:
        return [value.float() for value in super().values(name)]


def _table(rounds: Rounds) -> dict[str, Lowering]:
    """Return the torch table with rounding only where `rounds` says so; weights stay as they are."""

    def lowered(kind: str, lowering: Lowering) -> Lowering:
        def run(arguments: Arguments[Tensor]) -> Tensor | tuple[Tensor, ...]:
            with patch.object(Tensor, "half", lambda x: x):
                result = lowering(_Wide(arguments))
            pieces = result if isinstance(result, tuple) else (result,)
            rounded = tuple(x.to(torch.float16) if rounds(kind, x) else x for x in pieces)
            return rounded if isinstance(result, tuple) else rounded[0]

        return run

    return {
        kind: lowering if kind.startswith("constexpr_") else lowered(kind, lowering)
        for kind, lowering in TABLE.items()
    }


def _logits(artifact: Path, tokens: Sequence[int], backend: str, rounds: Rounds) -> Floats:
    """Return the artifact's logits of every row; torch rounds operations as `rounds` says."""
    with patch.dict(TABLE, _table(rounds)):  # type: ignore[arg-type]
        verifier = open_verifier(artifact, backend, 1)
        width = verifier.shape.block
        passes = [
            run_rows(verifier, pass_of(verifier, list(tokens[first : first + width]), first).rows, width)
            for first in range(0, len(tokens), width)
        ]
        verifier.close()
    return np.concatenate([np.asarray(rows, np.float32) for rows in passes])


def _expected(gguf: Path, tokens: Sequence[int]) -> Floats:
    with GGUFFile(gguf) as file:
        reference = Reference(file, CONTEXT)
        layers, count = len(reference.facts.layers), len(tokens)
        hidden = reference.layers(
            0, layers, reference.embed(tokens), range(count), reference.caches(), tokens
        )
        logits: Floats = reference.logits(hidden)
    return logits


@dataclass(frozen=True)
class RoundingResult:
    """One model with one way of rounding: the logits' error, and the rows with another best token."""

    model: str
    way: str
    error: float
    differing: int


def measured(gguf: Path, tokens: Sequence[int]) -> list[RoundingResult]:
    """Run one model with every way of rounding."""
    options = ConvertOptions(target=Target.MAC, weights=WeightChoice(WeightFormat.FP16), context=CONTEXT)
    artifact, expected = artifact_of(gguf, options), _expected(gguf, tokens)
    found_by = {way: _logits(artifact, tokens, TORCH, rounds) for way, rounds in WAYS.items()}
    found_by[OPENVINO_WAY] = _logits(artifact, tokens, OPENVINO, WAYS["as shipped"])
    outcomes = []
    for way, found in found_by.items():
        error = float(np.sqrt(np.square(found - expected).mean()))
        differing = int((found.argmax(axis=1) != expected.argmax(axis=1)).sum())
        outcomes.append(RoundingResult(gguf.stem, way, error, differing))
    return outcomes


def summary(outcomes: Sequence[RoundingResult]) -> list[tuple[str, float, float, float, int]]:
    """Return for each way its error relative to the shipped one, and the rows that differ.

    The error is the geometric mean, with the least and the largest.
    """
    shipped = {outcome.model: outcome.error for outcome in outcomes if outcome.way == "as shipped"}
    rows = []
    for way in (*WAYS, OPENVINO_WAY):
        own = [outcome for outcome in outcomes if outcome.way == way]
        ratios = np.array([outcome.error / shipped[outcome.model] for outcome in own])
        mean = float(np.exp(np.log(ratios).mean()))
        differing = sum(outcome.differing for outcome in own)
        rows.append((way, mean, float(ratios.min()), float(ratios.max()), differing))
    return rows


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--seeds", type=int, default=5, help="random models of each size beside the files")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(command_line(parser, FAMILIES / f"{BASES[0]}.gguf"))
    outcomes: list[RoundingResult] = []
    with tempfile.TemporaryDirectory() as folder:
        models = chosen.models or [
            *(FAMILIES / f"{base}.gguf" for base in BASES),
            *(
                Variant(base, seed=seed).write(Path(folder) / f"{base}-{seed}.gguf")
                for base in BASES
                for seed in range(1, chosen.seeds + 1)
            ),
        ]
        for gguf in models:
            with GGUFFile(gguf) as file:
                vocabulary = file.strings("tokenizer.ggml.tokens")
            rng = np.random.default_rng(0)
            tokens = [int(token) for token in rng.integers(3, len(vocabulary), size=TOKENS)]
            outcomes += measured(gguf, tokens)
    rows = summary(outcomes)
    if chosen.json:
        emit({**machine(), "models": [vars(o) for o in outcomes], "ways": rows})
        return
    head = ("rounding", "error", "least", "largest", "rows that differ")
    show_table(head, [(way, f"{a:.3f}", f"{b:.3f}", f"{c:.3f}", str(n)) for way, a, b, c, n in rows])
    print(f"{len(models)} models of {TOKENS} rows each; errors relative to the first line, geometric mean")


if __name__ == "__main__":
    main()
