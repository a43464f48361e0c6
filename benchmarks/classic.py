"""Time the classic route to Core ML, for comparison: torch trace, ct.convert, linear_quantize_weights.

    python benchmarks/classic.py model.gguf [--layers 2] [--json]

It converts layers of the GGUF's sizes with random weights: a torch module with its KV state in buffers and
1x1 convolutions for projections. It ends with an .mlpackage of int8 weights with a scale per channel on the
disk, which is the default of `anespec convert`.
"""

import argparse
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import coremltools as ct
import coremltools.optimize.coreml as cto
import numpy as np
import torch
from measure import MAXRSS_UNIT, emit, gigabytes, show_table
from smoke_options import FOLDER, MODEL, command_line
from torch import Tensor, nn

from anespec.convert.source.facts import AttentionFacts
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile

BLOCK, SLOTS = 4, 2048


class Layer(nn.Module):
    """Attention over a state of SLOTS slots and a gated MLP; norms without weights."""

    def __init__(self, facts: AttentionFacts, width: int, d: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = facts.heads, facts.kv_heads, facts.head_dim
        wide, narrow = facts.heads * facts.head_dim, facts.kv_heads * facts.head_dim
        for name, rows, columns in (
            ("q", wide, d),
            ("k", narrow, d),
            ("v", narrow, d),
            ("o", d, wide),
            ("gate", width, d),
            ("up", width, d),
            ("down", d, width),
        ):
            setattr(self, name, nn.Conv2d(columns, rows, 1, bias=False))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, self.kv_heads, SLOTS, self.dim, dtype=torch.float16))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attn_mask: Tensor, write_mask: Tensor) -> Tensor:
        """Run the layer.

        x [1, d, T, 1]; cos, sin [T, dim]; attn_mask [1, 1, T, S]; write_mask [1, 1, S, T].
        """
        taken = normed(x)
        q = turned(split(self.q(taken), self.heads, self.dim), cos, sin)
        k = turned(split(self.k(taken), self.kv_heads, self.dim), cos, sin)
        v = split(self.v(taken), self.kv_heads, self.dim)
        kept = 1 - write_mask.sum(dim=-1, keepdim=True)
        self.keys[:] = (self.keys * kept + write_mask @ k).half()
        self.values[:] = (self.values * kept + write_mask @ v).half()
        group = self.heads // self.kv_heads
        keys, values = (t.float().repeat_interleave(group, dim=1) for t in (self.keys, self.values))
        scores = q @ keys.transpose(-1, -2) * self.dim**-0.5 + attn_mask
        mixed = (scores.softmax(dim=-1) @ values).transpose(-1, -2)
        x = x + self.o(mixed.reshape(1, self.heads * self.dim, -1, 1))
        taken = normed(x)
        return x + self.down(nn.functional.silu(self.gate(taken)) * self.up(taken))


def normed(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(dim=1, keepdim=True) + 1e-5)


def split(x: Tensor, heads: int, dim: int) -> Tensor:
    """Reshape [1, heads * dim, T, 1] to [1, heads, T, dim]."""
    return x.reshape(1, heads, dim, -1).transpose(-1, -2)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Layers(nn.Module):
    """Consecutive layers."""

    def __init__(self, layers: list[Layer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attn_mask: Tensor, write_mask: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, cos, sin, attn_mask, write_mask)
        return x


@dataclass(frozen=True)
class ClassicCost:
    """The cost of the classic route: `seconds` by step, the number of `weights`, the peak memory in bytes."""

    layers: int
    weights: int
    seconds: dict[str, float]
    peak: int

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def per_gigaweight(self) -> float:
        """Return the seconds for 10^9 weights."""
        return self.total / self.weights * 1e9

    def as_json(self) -> dict[str, object]:
        return {
            "layers": self.layers,
            "weights": self.weights,
            "seconds": {step: round(seconds, 2) for step, seconds in self.seconds.items()},
            "total_seconds": round(self.total, 2),
            "seconds_per_gigaweight": round(self.per_gigaweight, 2),
            "peak_bytes": self.peak,
        }


def cost_of(gguf: Path, count: int, folder: Path) -> ClassicCost:
    """Convert `count` layers of the file's sizes into `folder`."""
    with GGUFFile(gguf) as file:
        facts = SourceModel(file).facts
    layers = [each for each in facts.attentions[:count] if isinstance(each, AttentionFacts)]
    widths = [layer.mlp.width for layer in facts.layers[:count]]
    torch.manual_seed(0)
    seconds: dict[str, float] = {}

    def timed(step: str, began: float) -> float:
        now = time.perf_counter()
        seconds[step] = now - began
        return now

    sizes = zip(layers, widths, strict=True)
    module = Layers([Layer(layer, width, facts.hidden_size) for layer, width in sizes]).eval()
    weights = sum(parameter.numel() for parameter in module.parameters())
    dim, at = layers[0].head_dim, time.perf_counter()
    shapes = {
        "x": (1, facts.hidden_size, BLOCK, 1),
        "cos": (BLOCK, dim),
        "sin": (BLOCK, dim),
        "attn_mask": (1, 1, BLOCK, SLOTS),
        "write_mask": (1, 1, SLOTS, BLOCK),
    }
    with torch.no_grad():
        traced = torch.jit.trace(module, tuple(torch.zeros(shape) for shape in shapes.values()))
    at = timed("torch.jit.trace", at)
    states = [
        ct.StateType(
            ct.TensorType(shape=(1, layer.kv_heads, SLOTS, layer.head_dim), dtype=np.float16),
            name=f"layers.{index}.{part}",
        )
        for index, layer in enumerate(layers)
        for part in ("keys", "values")
    ]
    model = ct.convert(
        traced,
        inputs=[ct.TensorType(name, shape, dtype=np.float16) for name, shape in shapes.items()],
        outputs=[ct.TensorType("hidden", dtype=np.float16)],
        states=states,
        minimum_deployment_target=ct.target.iOS18,
        skip_model_load=True,
    )
    at = timed("ct.convert", at)
    config = cto.OptimizationConfig(
        cto.OpLinearQuantizerConfig(mode="linear_symmetric", granularity="per_channel")
    )
    model = cto.linear_quantize_weights(model, config)
    at = timed("linear_quantize_weights", at)
    model.save(str(folder / "classic.mlpackage"))
    timed("save", at)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT
    return ClassicCost(len(layers), weights, seconds, peak)


def show(cost: ClassicCost) -> None:
    """Print a table."""
    rows = [(step, f"{seconds:.1f}") for step, seconds in cost.seconds.items()]
    show_table((f"classic route, {cost.layers} layers", "seconds"), [*rows, ("total", f"{cost.total:.1f}")])
    print(
        f"{cost.per_gigaweight:.0f} seconds for 10^9 weights, peak memory {gigabytes(cost.peak)} "
        f"for {gigabytes(cost.weights)} of int8\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("gguf", type=Path, help="the GGUF whose sizes the layers have")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--output-folder", type=Path, help="default: beside the GGUF")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(command_line(parser, MODEL, "--layers", 1, "--output-folder", FOLDER))
    with tempfile.TemporaryDirectory(
        prefix="classic-", dir=options.output_folder or options.gguf.parent
    ) as folder:
        cost = cost_of(options.gguf, options.layers, Path(folder))
    if options.json:
        emit(cost.as_json())
    else:
        show(cost)


if __name__ == "__main__":
    sys.exit(main())
