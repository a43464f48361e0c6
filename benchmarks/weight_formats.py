"""Measure the seconds of one thread to store 10^9 weights in each weight format.

    python benchmarks/weight_formats.py [--rows 4096] [--columns 3072] [--json]

Random weights in F16, Q8_0 and Q4_0 are read from a GGUF and dequantised, or repacked by the formats that
can. The shortest processor time of three turns counts. `convert/worker_count.py` uses these figures to choose
the number of processes of a conversion.
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
    """A tensor of an open GGUF, whole and in the file's order."""

    def __init__(self, file: GGUFFile, name: str) -> None:
        info = file.info(name)
        self.file, self.name, self.kind = file, name, info.kind
        self.shape = (info.shape[0], info.shape[1])
        self.order = np.arange(self.shape[0])
        self.rope_rows = None

    def rows(self, wanted: slice) -> NDArray[np.float32]:
        """Return rows as float32 (rows, in)."""
        return self.file.rows(self.name, self.order[wanted])

    def blocks(self, wanted: slice) -> NDArray[np.uint8]:
        """Return the same rows as the file stores them."""
        return self.file.raw(self.name)[self.order[wanted]]

    def forget(self) -> None:
        """Do nothing: the next turn reads the tensor again."""


def write_sources(path: Path, rows: int, columns: int) -> None:
    """Write a GGUF with one random matrix of each type in SOURCES, named after its type."""
    weights = np.random.default_rng(0).standard_normal((rows, columns), np.float32) * columns**-0.5
    writer = GGUFWriter(path, "llama")
    for kind in SOURCES:
        writer.add_tensor(kind.name, quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def seconds(source: OpenMatrix, asked: WeightFormat) -> float:
    """Return the processor time for 10^9 weights."""
    choice, least = choose(asked, source.shape[1], source.kind), float("inf")
    for _ in range(TURNS):
        began = time.process_time()
        for _ in stored_pieces(source, choice):
            pass
        least = min(least, time.process_time() - began)
    return least / (source.shape[0] * source.shape[1]) * 1e9


def of_sources(file: GGUFFile, asked: WeightFormat) -> dict[str, float]:
    """Return the seconds by the source's type."""
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
