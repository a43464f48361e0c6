"""Milliseconds of one mixture of experts, with the experts that no row uses left out, and with all of them.

python benchmarks/experts.py [--experts 64] [--used 8] [--hidden 2048] [--width 1024] [--rows 1 4 16] [--json]

The defaults are the sizes of a layer of OLMoE-1B-7B. Weights are random and stored as int8; each row is
random, so rows share experts only by chance.
"""

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from gguf.constants import GGMLQuantizationType
from measure import describe, emit, machine, show_table
from numpy.typing import NDArray
from smoke_options import command_line
from turns import Contestant, Key, take_turns

from anespec.convert.families.family import Activation
from anespec.convert.families.mixture import Gating
from anespec.convert.graph.builder import Var, mb
from anespec.convert.graph.experts import MixtureInputs, MixturePlan, MixtureWeights, mixture
from anespec.convert.graph.functions import ProgramScope
from anespec.convert.graph.mlp import MLPWeights
from anespec.convert.graph.projection import Projection
from anespec.convert.package import write_package
from anespec.convert.weights.stored import DeferredWeight
from anespec.manifests.channel_layout import ChannelLayout, channel_shape
from anespec.manifests.schema import HIDDEN_IN, HIDDEN_OUT, MAIN, ShardFunction, TensorSpec, WeightFormat
from anespec.runtime.backends.portable.openvino_cpu.runner import OpenVINORunner
from anespec.runtime.backends.portable.program import Program, load_program
from anespec.runtime.backends.portable.torch_cpu.runner import TorchRunner
from anespec.system.machine import processors

RUNNERS: dict[str, type[TorchRunner] | type[OpenVINORunner]] = {
    "torch": TorchRunner,
    "openvino": OpenVINORunner,
}
WIDEST = 128


@dataclass(frozen=True)
class RandomMatrix:
    """A matrix of random numbers as a source of weights; its rows repeat those of a small block."""

    shape: tuple[int, int]
    block: NDArray[np.float32]
    kind: GGMLQuantizationType = GGMLQuantizationType.F32
    block_kind: GGMLQuantizationType | None = GGMLQuantizationType.F32
    name: str = "random"
    rope_rows: None = None

    @classmethod
    def of(cls, rng: np.random.Generator, rows: int, columns: int) -> "RandomMatrix":
        spread = columns**-0.5
        return cls(
            (rows, columns), rng.normal(scale=spread, size=(min(rows, 64), columns)).astype(np.float32)
        )

    @property
    def order(self) -> NDArray[np.intp]:
        return np.arange(self.shape[0])

    def rows(self, wanted: slice) -> NDArray[np.float32]:
        return self.block[self.order[wanted] % len(self.block)]

    def blocks(self, wanted: slice) -> NDArray[np.uint8]:
        return self.rows(wanted).view(np.uint8)

    def forget(self) -> None:
        """Nothing to release."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, number in (("experts", 64), ("used", 8), ("hidden", 2048), ("width", 1024)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--backends", nargs="+", choices=RUNNERS, default=[*RUNNERS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=processors())
    parser.add_argument("--json", action="store_true")
    smoke = ("--experts", 8, "--used", 2, "--hidden", 64, "--width", 32, "--rounds", 1)
    return parser.parse_args(command_line(parser, *smoke))


def layer(options: argparse.Namespace, folder: Path) -> Program:
    """Return a program of one mixture with random weights."""
    rng = np.random.default_rng(0)

    def projection(rows: int, columns: int, weights: WeightFormat) -> Projection:
        return Projection(DeferredWeight(RandomMatrix.of(rng, rows, columns), weights))

    def expert() -> MLPWeights:
        shapes = (
            (options.width, options.hidden),
            (options.width, options.hidden),
            (options.hidden, options.width),
        )
        return MLPWeights(*(projection(*shape, WeightFormat.INT8_CHANNEL) for shape in shapes))

    weights = MixtureWeights(
        plan=MixturePlan(options.experts, options.used, Gating.SOFTMAX, renormalised=True),
        router=projection(options.experts, options.hidden, WeightFormat.FP16),
        experts=[expert() for _ in range(options.experts)],
    )

    def build(given: Mapping[str, Var], layout: ChannelLayout) -> tuple[Var, ...]:
        x = given[HIDDEN_IN]
        mixed = mixture(MixtureInputs(x, x, x), weights, Activation.SILU, layout, 1e-5, "layer_0")
        return (mb.identity(x=mixed, name=HIDDEN_OUT),)

    spec = TensorSpec(name=HIDDEN_IN, shape=channel_shape(options.hidden))
    scope = ProgramScope(4, WIDEST, (ShardFunction(name=MAIN),))
    path = folder / "layer.mlpackage"
    write_package(scope.program(build, (spec,), (HIDDEN_OUT,)), path)
    return load_program(path)


def with_all_experts(program: Program) -> Program:
    """Return the program with an expert's weight as an output: a library then finds no mixture."""
    split = next(each for each in program.operations if each.kind == "split")
    return replace(program, outputs=(*program.outputs, split.outputs[0]))


def main() -> None:
    options, where = arguments(), machine()
    contestants: dict[Key, Contestant] = {}
    seconds: dict[str, float] = {}
    rng = np.random.default_rng(1)
    with TemporaryDirectory() as folder:
        program = layer(options, Path(folder))
        for backend in options.backends:
            for form, whole in (("experts in use", program), ("all experts", with_all_experts(program))):
                began = time.perf_counter()
                runner = RUNNERS[backend](whole, options.threads)
                name = f"{backend}, {form}"
                seconds[name] = time.perf_counter() - began
                for rows in options.rows:
                    x = rng.normal(size=(1, options.hidden, rows, 1)).astype(np.float16)
                    contestants[name, rows] = partial(runner.run, {HIDDEN_IN: x})
        passes = take_turns(contestants, options.rounds)
    if options.json:
        timings = {f"{name}, {rows} rows": timing.as_json() for (name, rows), timing in passes.items()}
        emit({**where, "passes": timings, "seconds_to_load": seconds})
        return
    print(describe(where))
    print(
        f"{options.experts} experts of {options.hidden} x {options.width}, {options.used} used, "
        f"{options.threads} threads: ms"
    )
    rows = [
        (name, str(count), f"{timing.median:.2f}", f"{timing.least:.2f}", f"{seconds[name]:.1f}")
        for (name, count), timing in passes.items()
    ]
    show_table(("form", "rows", "median", "least", "s to load"), rows)


if __name__ == "__main__":
    main()
