"""Measure time and memory of the golden gate by stage, compared with the budget of 5 minutes for 4 GB.

    python benchmarks/golden.py model.gguf [--target mac] [--weights int8-channel] [--backend openvino ...]
                                [--threads N] [--json]

The gate runs as in `anespec validate --gate golden`, with imports and the source's hash, in a process of its
own for every backend, whose peak memory is printed. A stage is the text before the colon of the gate's
progress notes.
"""

import argparse
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from measure import MAXRSS_UNIT, Budget, describe, emit, gigabytes, machine, show_budgets, show_table
from smoke_options import MODEL, command_line

BUDGET_SECONDS = 300
BUDGET_BYTES = 4e9


@dataclass(frozen=True)
class GateRun:
    """One run of the gate: seconds by stage, and bytes."""

    backend: str
    standing: str
    stages: dict[str, float]
    artifact: int
    peak_memory: int

    @property
    def seconds(self) -> float:
        """Return the seconds from the start of the imports to the recorded verdict."""
        return sum(self.stages.values())

    @property
    def budget(self) -> Budget:
        """Return the time compared with the budget of an artifact of that size."""
        allowed = BUDGET_SECONDS * self.artifact / BUDGET_BYTES
        return Budget(f"golden, {self.backend}: time / (5 min per 4 GB)", self.seconds / allowed, 1.0)


class Stopwatch:
    """The seconds by stage; a stage lasts until the next one begins, and may occur again."""

    def __init__(self, stage: str) -> None:
        self.stages: dict[str, float] = {}
        self.stage, self.began = stage, time.perf_counter()

    def begin(self, stage: str) -> None:
        """End the current stage and begin another one."""
        now = time.perf_counter()
        self.stages[self.stage] = self.stages.get(self.stage, 0.0) + now - self.began
        self.stage, self.began = stage, now

    def note(self, text: str, share: float | None = None, /) -> None:
        """Take the gate's progress notes."""
        self.begin(text.partition(":")[0])


def run_gate(artifact_path: Path, backend: str, threads: int | None) -> GateRun:
    """Run the gate in this process, which must not have imported it yet."""
    watch = Stopwatch("imports")
    import resource

    from anespec.manifests.store import Artifact
    from anespec.validate.gates import find_source, golden_gate

    watch.begin("hash of the source")
    artifact = Artifact(artifact_path)
    source = find_source(artifact)
    watch.begin("reading the source")
    verdict = golden_gate(artifact, source, backend, threads, watch.note)
    watch.begin("end")
    return GateRun(
        backend=backend,
        standing=verdict.standing.value,
        stages=watch.stages,
        artifact=sum(shard.bytes for shard in artifact.manifest.shards) + artifact.manifest.tokens.bytes,
        peak_memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT,
    )


def show(run: GateRun) -> None:
    """Print the stages of a run."""
    print(
        f"\n{run.backend}: {run.standing}, {run.seconds:.1f} s for "
        f"{gigabytes(run.artifact)}, {gigabytes(run.peak_memory)} of memory at most (mapped files included)"
    )
    show_table(("stage", "seconds"), [(stage, f"{seconds:.2f}") for stage, seconds in run.stages.items()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("gguf", type=Path, help="with --artifact, the artifact itself")
    parser.add_argument("--artifact", action="store_true", help="run one backend on an artifact, here")
    parser.add_argument("--target", default="mac", choices=("mac", "iphone", "cpu"))
    parser.add_argument("--weights", default="int8-channel")
    parser.add_argument("--backend", nargs="+", default=["openvino"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(command_line(parser, MODEL, "--target", "cpu"))
    if options.artifact:
        run = run_gate(options.gguf, options.backend[0], options.threads)
        emit({**asdict(run), "seconds": run.seconds})
        return
    where = machine()
    runs = [_in_own_process(options, _converted(options), backend) for backend in options.backend]
    if options.json:
        emit({**where, "runs": [{**asdict(run), **run.budget.as_json()} for run in runs]})
        return
    print(describe(where))
    for run in runs:
        show(run)
    print()
    show_budgets([run.budget for run in runs])


def _converted(options: argparse.Namespace) -> Path:
    from subjects import artifact_of

    from anespec.convert.options import ConvertOptions
    from anespec.manifests.schema import Target, WeightFormat
    from anespec.manifests.weight_choice import WeightChoice

    weights = WeightChoice(WeightFormat(options.weights))
    return artifact_of(options.gguf, ConvertOptions(target=Target(options.target), weights=weights))


def _in_own_process(options: argparse.Namespace, artifact: Path, backend: str) -> GateRun:
    import json

    command = [sys.executable, __file__, str(artifact), "--artifact", "--backend", backend]
    command += ["--threads", str(options.threads)] if options.threads else []
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    facts = json.loads(done.stdout)
    facts.pop("seconds")
    return GateRun(**facts)


if __name__ == "__main__":
    main()
