"""Seconds that one thread takes to store 10^9 weights, for each weight format: what it costs to convert.

    python benchmarks/weight_formats.py [--rows 4096] [--columns 3072] [--json]

Random weights in F16, Q8_0 and Q4_0 (dequantised, or repacked by the formats that can), as they come out
of a GGUF; the least processor time of three turns. `convert/worker_count.py` decides by these figures how
many processes a conversion is worth.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from measure import emit, machine, show_table
from numpy.typing import NDArray
from smoke_options import command_line

from anespec.convert.weights.formats import choose
from anespec.convert.weights.stored import stored_pieces
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import WeightFormat

SOURCES = (GGMLQuantizationType.F16, GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_0)
TURNS = 3


class OpenMatrix:
    """A tensor of an open GGUF, whole and in its own order."""

    def __init__(self, file: GGUFFile, name: str) -> None:
        info = file.info(name)
        self.file, self.name, self.kind = file, name, info.kind
        self.shape = (info.shape[0], info.shape[1])
        self.order = np.arange(self.shape[0])

    def rows(self, wanted: slice) -> NDArray[np.float32]:
        """float32 (rows, in)."""
        return self.file.rows(self.name, self.order[wanted])

    def blocks(self, wanted: slice) -> NDArray[np.uint8]:
        """The same rows as the file stores them."""
        return self.file.raw(self.name)[self.order[wanted]]

    def forget(self) -> None:
        """It is read again in the next turn."""


def write_sources(path: Path, rows: int, columns: int) -> None:
    """A GGUF with one random matrix in each type of SOURCES, named by it."""
    weights = np.random.default_rng(0).standard_normal((rows, columns), np.float32) * columns**-0.5
    writer = GGUFWriter(path, "llama")
    for kind in SOURCES:
        writer.add_tensor(kind.name, quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def seconds(source: OpenMatrix, asked: WeightFormat) -> float:
    """Processor time for 10^9 weights."""
    choice, least = choose(asked, source.shape[1], source.kind), float("inf")
    for _ in range(TURNS):
        began = time.process_time()
        for _ in stored_pieces(source, choice):
            pass
        least = min(least, time.process_time() - began)
    return least / (source.shape[0] * source.shape[1]) * 1e9


def of_sources(file: GGUFFile, asked: WeightFormat) -> dict[str, float]:
    """The seconds by the source's type."""
    return {kind.name: round(seconds(OpenMatrix(file, kind.name), asked), 1) for kind in SOURCES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--columns", type=int, default=3072)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(command_line(parser, "--rows", 256, "--columns", 256))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.gguf"
        write_sources(path, options.rows, options.columns)
        with GGUFFile(path) as file:
            taken = {str(asked): of_sources(file, asked) for asked in WeightFormat}
    if options.json:
        emit({**machine(), "seconds_per_gigaweight": taken})
        return
    names = [kind.name for kind in SOURCES]
    show_table(
        ("weight format", *(f"from {name}" for name in names)),
        [(asked, *(f"{of[name]:.1f}" for name in names)) for asked, of in taken.items()],
    )


if __name__ == "__main__":
    main()
