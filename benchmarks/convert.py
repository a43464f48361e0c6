"""Measure time and memory of `anespec convert`, compared with copying the same bytes to the same disk.

    python benchmarks/convert.py model.gguf [smaller.gguf ...] [--output-folder DIR] [--classic LAYERS]
                                 [--json] [--target cpu ...]

The conversion runs as its own process through the command line and gets all options that are not known here.
All sides start from a source that is in the system's cache and end with their bytes on the disk. With a
smaller file of the same shape it also reports whether memory grows with the model, and with --classic what
the classic route (classic.py) costs for a few layers.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import Budget, describe, emit, gigabytes, machine, show_budgets, show_table
from process_tree import TreeRun, run_tree
from smoke_options import FOLDER, MODEL, command_line

from anespec.manifests.store import Artifact

CHUNK_BYTES = 1 << 23
REST_SECONDS = 5
"""The seconds to wait before a copy. A virtual machine returns freed memory to its host within seconds, and
taking it again costs time.

A conversion writes its first byte seconds after its start, so it never reuses memory that was freed before. A
copy must wait as long to be comparable; one that does not is several times as fast.
"""


def flush(path: Path) -> float:
    """Return the seconds until a file, or every file of a folder, is on the disk."""
    began = time.perf_counter()
    for file in [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    return time.perf_counter() - began


def copy(source: Path, target: Path) -> float:
    """Return the seconds to copy a file through memory and flush it, without sharing blocks."""
    began = time.perf_counter()
    with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        while chunk := reader.read(CHUNK_BYTES):
            writer.write(chunk)
        os.fsync(writer.fileno())
    return time.perf_counter() - began


def warm(source: Path) -> None:
    """Read a file once, so that every run finds it in the system's cache."""
    with source.open("rb", buffering=0) as reader:
        while reader.read(CHUNK_BYTES):
            pass


@dataclass(frozen=True)
class Cost:
    """The cost of a conversion and of copies of its source, in seconds and bytes.

    `copying` are the times of copies before and after the conversion, `copying_at_once` that of one into
    memory that was freed immediately before.
    """

    name: str
    source: int
    artifact: int
    weights: int
    largest_shard: int
    conversion: TreeRun
    flushing: float
    copying: tuple[float, float]
    copying_at_once: float

    @property
    def seconds(self) -> float:
        """Return the seconds from the start of the command until all bytes are on the disk."""
        return self.conversion.seconds + self.flushing

    def budgets(self) -> list[Budget]:
        """Return the ratios that docs/DESIGN.md limits in section 9."""
        run, shard = self.conversion, self.largest_shard
        return [
            Budget("seconds / copying the source and flushing", self.seconds / min(self.copying), 3.0),
            Budget("the same, into memory just freed", self.seconds / self.copying_at_once, 3.0),
            Budget("peak memory of all processes / largest shard", run.peak / shard, 1.5),
            Budget("the same without file pages", run.peak_own / shard, 1.5),
        ]

    def as_json(self) -> dict[str, object]:
        """Return all figures."""
        return {
            "gguf": self.name,
            "source_bytes": self.source,
            "artifact_bytes": self.artifact,
            "weights": self.weights,
            "largest_shard_bytes": self.largest_shard,
            "convert_seconds": round(self.conversion.seconds, 2),
            "convert_cpu_seconds": round(self.conversion.cpu_seconds, 2),
            "flush_seconds": round(self.flushing, 2),
            "copy_seconds": [round(seconds, 2) for seconds in self.copying],
            "copy_at_once_seconds": round(self.copying_at_once, 2),
            "seconds_per_gigaweight": round(self.seconds / self.weights * 1e9, 2),
            "peak_bytes": self.conversion.peak,
            "peak_own_bytes": self.conversion.peak_own,
            "budgets": [budget.as_json() for budget in self.budgets()],
        }

    def show(self) -> None:
        """Print the table."""
        run = self.conversion
        rows = (
            ("anespec convert", f"{run.seconds:.1f}", gigabytes(self.artifact)),
            ("  of all processors", f"{run.cpu_seconds:.1f}", ""),
            ("  with its bytes on the disk", f"{self.seconds:.1f}", ""),
            ("copy and flush, twice", "{:.1f} {:.1f}".format(*self.copying), gigabytes(self.source)),
            ("  into memory just freed", f"{self.copying_at_once:.1f}", ""),
        )
        show_table((self.name, "seconds", "bytes"), rows)
        print(
            f"{self.seconds / self.weights * 1e9:.1f} seconds for 10^9 weights; peak memory of all processes "
            f"{gigabytes(run.peak)}, {gigabytes(run.peak_own)} of it not file pages; "
            f"largest shard {gigabytes(self.largest_shard)}\n"
        )
        show_budgets(self.budgets())
        print()


def growth(costs: Sequence[Cost]) -> list[Budget]:
    """Return the memory of converting the largest file divided by the smallest; none for one file."""
    smallest, *_, largest = sorted(costs, key=lambda cost: cost.source) if len(costs) > 1 else (None, None)
    if smallest is None or largest is None:
        return []
    name = f"memory without file pages, {largest.name} / {smallest.name}"
    return [Budget(name, largest.conversion.peak_own / smallest.conversion.peak_own, 1.1)]


def cost_of(source: Path, work: Path, rest: float, convert_options: Sequence[str]) -> Cost:
    """Convert `source` in the folder `work`, and copy it before and after, with rests in between."""
    warm(source)
    copied, artifact = work / "copy", work / "model.anespec"

    def copying(rest: float) -> float:
        time.sleep(rest)
        seconds = copy(source, copied)
        copied.unlink()
        return seconds

    before, at_once = copying(rest), copying(0)
    time.sleep(rest)
    command = (str(Path(sys.executable).with_name("anespec")), "convert", str(source), "-o", str(artifact))
    conversion = run_tree((*command, *convert_options))
    flushing = flush(artifact)
    manifest = Artifact(artifact).manifest
    shutil.rmtree(artifact)
    shards = [shard.bytes for shard in manifest.shards]
    return Cost(
        name=source.name,
        source=source.stat().st_size,
        artifact=sum(shards) + manifest.tokens.bytes,
        weights=sum(tensor.rows * tensor.columns for shard in manifest.shards for tensor in shard.tensors),
        largest_shard=max(shards),
        conversion=conversion,
        flushing=flushing,
        copying=(before, copying(rest)),
        copying_at_once=at_once,
    )


def classic_route(source: Path, layers: int, as_json: bool) -> dict[str, Any] | None:
    """Run the classic route in a process of its own; print its table, or return its figures as JSON."""
    script = Path(__file__).with_name("classic.py")
    command = [sys.executable, str(script), str(source), "--layers", str(layers)]
    if not as_json:
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        return None
    ran = subprocess.run(
        [*command, "--json"], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    figures: dict[str, Any] = json.loads(ran.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("gguf", type=Path, nargs="+")
    parser.add_argument("--output-folder", type=Path, help="on the disk to measure; default: beside the GGUF")
    parser.add_argument("--rest", type=float, default=REST_SECONDS, help="seconds before each copy")
    parser.add_argument("--classic", type=int, default=0, metavar="LAYERS", help="also the classic route")
    parser.add_argument("--json", action="store_true")
    smoke = (MODEL, "--output-folder", FOLDER, "--rest", 0, "--target", "cpu")
    options, convert_options = parser.parse_known_args(command_line(parser, *smoke))
    where = machine()
    costs = []
    for gguf in options.gguf:
        with tempfile.TemporaryDirectory(prefix="convert-", dir=options.output_folder or gguf.parent) as work:
            costs.append(cost_of(gguf, Path(work), options.rest, convert_options))
    grown = growth(costs)
    if not options.json:
        print(describe(where))
        for cost in costs:
            cost.show()
        if grown:
            show_budgets(grown)
    classic = classic_route(options.gguf[0], options.classic, options.json) if options.classic else None
    if options.json:
        report = {"files": [cost.as_json() for cost in costs], "growth": [b.as_json() for b in grown]}
        emit({**where, **report, "classic": classic})


if __name__ == "__main__":
    main()
