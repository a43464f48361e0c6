"""Show the error of each layer against the fp32 reference, and its mean by the kind of layer.

    python benchmarks/layers.py model.gguf [--backend torch] [--weights fp16] [--target cpu] [--json]

The model is converted with a shard for every layer, and the golden gate compares each with the reference on
embeddings, on random rows and on extreme ones. So a gated delta net or Mamba 2, which carries a state, can be
compared with attention in the same model, and a layer that fp16 cannot hold is found by its number.
"""

import argparse
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from measure import describe, emit, machine, show_table
from smoke_options import MODEL, command_line

from anespec.convert.options import ConvertOptions
from anespec.convert.pipeline import convert
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact
from anespec.manifests.weight_choice import WeightChoice
from anespec.runtime.backends import BACKENDS, TORCH
from anespec.validate.gates import golden_gate
from anespec.validate.golden.figures import ShardFigures


def layer_figures(
    gguf: Path, backend: str, weights: WeightChoice, target: Target
) -> tuple[tuple[str, ...], tuple[ShardFigures, ...], float]:
    """Return the kind of each layer, golden's figures of all of them, and the largest hidden number."""
    with tempfile.TemporaryDirectory() as folder, GGUFFile(gguf) as file:
        model = SourceModel(file)
        count = len(model.facts.layers)
        options = ConvertOptions(target=target, weights=weights, topology=(1,) * count)
        artifact = Artifact(convert(ConversionPlan(model, options), Path(folder) / "layers.anespec").path)
        verdict = golden_gate(artifact, gguf, backend, None, lambda *_: None)
        kinds = tuple(layer.kind for layer in model.facts.layers)
    return kinds, tuple(each for each in verdict.shards if each.layers), verdict.hidden.largest


def main() -> None:
    """Print a table of all layers, and the mean error of each kind by stimulus."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--backend", choices=BACKENDS, default=TORCH)
    parser.add_argument("--weights", type=WeightChoice.parse, default=WeightChoice.parse("fp16"))
    parser.add_argument("--target", type=Target, choices=list(Target), default=Target.CPU)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(command_line(parser, MODEL))
    kinds, figures, largest = layer_figures(options.gguf, options.backend, options.weights, options.target)
    stimuli = tuple(dict.fromkeys(each.stimulus for each in figures))
    by_stimulus = {name: [each for each in figures if each.stimulus == name] for name in stimuli}
    means: dict[str, dict[str, float]] = defaultdict(dict)
    for name, own in by_stimulus.items():
        for kind in dict.fromkeys(kinds):
            means[kind][name] = fmean(
                each.error for each, its_kind in zip(own, kinds, strict=True) if its_kind == kind
            )
    if options.json:
        emit(
            {
                "layers": [
                    {"kind": kind, **{name: by_stimulus[name][number].model_dump() for name in stimuli}}
                    for number, kind in enumerate(kinds)
                ],
                "means": means,
                "largest_hidden": largest,
                **machine(),
            }
        )
        return
    show_table(
        ["layer", "kind", *(f"{name}: error (of its limit)" for name in stimuli)],
        [
            [
                str(number),
                kind,
                *(
                    f"{each.error:.2%} ({each.error / each.limit:.2f})"
                    for each in (by_stimulus[name][number] for name in stimuli)
                ),
            ]
            for number, kind in enumerate(kinds)
        ],
    )
    show_table(
        ["mean", "", *stimuli],
        [[kind, "", *(f"{each[name]:.2%}" for name in stimuli)] for kind, each in means.items()],
    )
    print(f"largest number in a hidden state: {largest:.4g}; {describe(machine())}")


if __name__ == "__main__":
    main()
