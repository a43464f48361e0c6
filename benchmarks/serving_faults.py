"""What a daemon goes through, scripted: crowds, slow and vanishing clients, kills, full disks, nonsense.

Usage: python benchmarks/serving_faults.py [MODEL.gguf] [--only NAME ...] [--requests 10000] [--seconds 60]

Each scenario prints `ok` and its figures, or what went wrong; the exit code is 1 if any did. Every answer is
compared with the one that the library gives for the same prompt, options and seed. Schemathesis is needed
for `malformed`; mounting the small disk of `full-disk` takes root's rights, without them it is left out.
"""

import argparse
import sys
import tempfile
import time
import traceback
from pathlib import Path

from faulty_clients import Oracle
from measure import machine
from serving_scenarios import SCENARIOS, Bench, UnavailableError
from smoke_options import MODEL, command_line

import anespec
from anespec.manifests.schema import Target

DEFAULT = Path(__file__).parents[2] / "shared" / "models" / "stories260K.Q8_0.gguf"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", type=Path, default=DEFAULT)
    parser.add_argument("--only", nargs="*", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--requests", type=int, default=10_000, help="of `growth`, and of raw bytes")
    parser.add_argument("--seconds", type=float, default=60.0, help="of schemathesis")
    smoke = (MODEL, "--only", "lost-state")
    chosen = parser.parse_args(command_line(parser, *smoke))
    print(machine())
    failed = False
    with tempfile.TemporaryDirectory(prefix="anespec-faults-") as folder:
        artifact = Path(folder) / "model.anespec"
        anespec.convert(
            chosen.model, artifact, anespec.ConvertOptions(target=Target.CPU, context=512, sequences=4)
        )
        with anespec.load(artifact) as model:
            bench = Bench(artifact, Path(folder), Oracle(model), chosen.requests, chosen.seconds)
            for name in chosen.only:
                began = time.monotonic()
                try:
                    said = f"ok: {SCENARIOS[name](bench)}"
                except UnavailableError as reason:
                    said = f"left out: {reason}"
                except Exception as error:
                    failed = True
                    said = f"WRONG: {error}"
                    traceback.print_exc()
                print(f"{name}: {said} ({time.monotonic() - began:.1f} s)", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
