"""Run fault scenarios on a daemon: many clients, slow and vanishing ones, kills, full disks, bad requests.

Usage: python benchmarks/serving_faults.py [MODEL.gguf] [--only NAME ...] [--requests 10000] [--seconds 60]

Each scenario prints `ok` and its figures, or its failure; the exit code is 1 if any failed. Every answer is
compared with the library's for the same prompt, options and seed. `malformed` needs schemathesis; `full-disk`
needs root's rights to mount a small disk, and is skipped without them.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from faulty_clients import Oracle
from measure import machine
from serving_scenarios import SCENARIOS, Bench, run_parts
from smoke_options import MODEL, command_line

import anespec
from anespec.manifests.schema import Target

DEFAULT = Path(__file__).parents[2] / "shared" / "models" / "stories260K.Q8_0.gguf"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", type=Path, default=DEFAULT)
    parser.add_argument("--only", nargs="*", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--requests", type=int, default=10_000, help="requests of `growth`, and mutants")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of schemathesis")
    smoke = (MODEL, "--only", "lost-state")
    chosen = parser.parse_args(command_line(parser, *smoke))
    print(machine())
    with tempfile.TemporaryDirectory(prefix="anespec-faults-") as folder:
        artifact = Path(folder) / "model.anespec"
        anespec.convert_model(
            chosen.model, artifact, anespec.ConvertOptions(target=Target.CPU, context=512, sequences=4)
        )
        with anespec.load(artifact, gates="now") as model:
            bench = Bench(artifact, Path(folder), Oracle(model), chosen.requests, chosen.seconds)
            held = run_parts(SCENARIOS, chosen.only, bench)
    sys.exit(not held)


if __name__ == "__main__":
    main()
