"""Time and peak memory of `anespec convert`, beside copying the same bytes to the same disk.

    python benchmarks/convert.py model.gguf [--output-folder DIR] [--json] [--target cpu ...]

The conversion runs as its own process through the command line; options not known here go to it. Both
sides start from a source that the system has read before, and both end with their bytes on the disk.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from measure import Budget, emit, gigabytes, machine, show_budgets, show_table

from anespec.manifests.store import Artifact

CHUNK_BYTES = 1 << 23
MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024
POLL_SECONDS = 0.01


@dataclass(frozen=True)
class ChildRun:
    """One finished process.

    `peak` is its largest resident set in bytes, mapped pages of the source file among them; `peak_own`
    leaves file pages out (Linux, sampled every 10 ms; 0 elsewhere).
    """

    seconds: float
    peak: int
    peak_own: int


class OwnMemoryWatch(threading.Thread):
    """Samples a process's anonymous resident memory until it is gone."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._status = Path(f"/proc/{pid}/status")

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while lines := [line for line in self._status.read_text().splitlines() if "RssAnon" in line]:
                self.peak = max(self.peak, 1024 * int(lines[0].split()[1]))
                time.sleep(POLL_SECONDS)


def run_child(command: Sequence[str]) -> ChildRun:
    """Run a command to its end; its own usage is asked of the system, not that of all children."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    watch = OwnMemoryWatch(process.pid)
    watch.start()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    watch.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with code {process.returncode}")
    return ChildRun(seconds, usage.ru_maxrss * MAXRSS_UNIT, watch.peak)


def flush(path: Path) -> float:
    """Seconds until a file, or every file of a folder, is on the disk."""
    began = time.perf_counter()
    for file in [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    return time.perf_counter() - began


def copy(source: Path, target: Path) -> float:
    """Seconds to copy a file through memory and flush it; no clone that shares its blocks."""
    began = time.perf_counter()
    with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        while chunk := reader.read(CHUNK_BYTES):
            writer.write(chunk)
        os.fsync(writer.fileno())
    return time.perf_counter() - began


def warm(source: Path) -> None:
    """Read a file once, so that nobody is the first to fetch it from the disk."""
    with source.open("rb", buffering=0) as reader:
        while reader.read(CHUNK_BYTES):
            pass


@dataclass(frozen=True)
class Cost:
    """What a conversion and a copy of its source cost; seconds and bytes."""

    source: int
    artifact: int
    largest_shard: int
    conversion: ChildRun
    flushing: float
    copying: tuple[float, float]

    @property
    def seconds(self) -> float:
        """From the start of the command until all is on the disk."""
        return self.conversion.seconds + self.flushing

    def budgets(self) -> list[Budget]:
        """The limits of DESIGN.md section 9."""
        return [
            Budget("seconds / copying the source and flushing", self.seconds / min(self.copying), 3.0),
            Budget("peak memory / largest shard", self.conversion.peak / self.largest_shard, 1.5),
            Budget("peak own memory / largest shard", self.conversion.peak_own / self.largest_shard, 1.5),
        ]

    def as_json(self) -> dict[str, object]:
        """All figures."""
        return {
            "source_bytes": self.source,
            "artifact_bytes": self.artifact,
            "largest_shard_bytes": self.largest_shard,
            "convert_seconds": round(self.conversion.seconds, 2),
            "flush_seconds": round(self.flushing, 2),
            "copy_seconds": [round(seconds, 2) for seconds in self.copying],
            "peak_bytes": self.conversion.peak,
            "peak_own_bytes": self.conversion.peak_own,
            "budgets": [budget.as_json() for budget in self.budgets()],
        }

    def show(self) -> None:
        """Print a table for a person."""
        rows = (
            ("anespec convert", f"{self.conversion.seconds:.1f}", gigabytes(self.artifact)),
            ("  with its bytes on the disk", f"{self.seconds:.1f}", ""),
            ("copy and flush, twice", "{:.1f} {:.1f}".format(*self.copying), gigabytes(self.source)),
        )
        show_table(("", "seconds", "bytes"), rows)
        print(
            f"peak memory {gigabytes(self.conversion.peak)}, {gigabytes(self.conversion.peak_own)} of it not "
            f"file pages; largest shard {gigabytes(self.largest_shard)}\n"
        )
        show_budgets(self.budgets())


def cost_of(source: Path, work: Path, convert_options: Sequence[str]) -> Cost:
    """Convert `source` and copy it, before and after, in the folder `work`."""
    warm(source)
    copied, artifact = work / "copy", work / "model.anespec"
    # A virtual machine may have to ask its host for memory that the page cache never used before. The
    # first copy does that for all: what is removed leaves its memory to the next.
    copy(source, copied)
    copied.unlink()
    before = copy(source, copied)
    copied.unlink()
    command = (str(Path(sys.executable).with_name("anespec")), "convert", str(source), "-o", str(artifact))
    conversion = run_child((*command, *convert_options))
    flushing = flush(artifact)
    manifest = Artifact(artifact).manifest
    shutil.rmtree(artifact)
    after = copy(source, copied)
    shards = [shard.bytes for shard in manifest.shards]
    written = sum(shards) + manifest.tokens.bytes
    return Cost(source.stat().st_size, written, max(shards), conversion, flushing, (before, after))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--output-folder", type=Path, help="on the disk to measure; default: beside the GGUF")
    parser.add_argument("--json", action="store_true")
    options, convert_options = parser.parse_known_args()
    where = machine()
    folder = options.output_folder or options.gguf.parent
    with tempfile.TemporaryDirectory(prefix="convert-", dir=folder) as work:
        cost = cost_of(options.gguf, Path(work), convert_options)
    if options.json:
        emit({"gguf": options.gguf.name, **where, **cost.as_json()})
    else:
        print("{machine}, {cores} cores, load before {load_before}".format_map(where))
        cost.show()


if __name__ == "__main__":
    main()
