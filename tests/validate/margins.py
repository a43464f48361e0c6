"""Print how far healthy artifacts are from golden's limits, and planted faults beyond them, by family.

    PYTHONPATH=tests/support:tests/validate python tests/validate/margins.py [--weights fp16] [FAMILY ...]

A figure is an error as a share of its limit: the largest of a healthy artifact, and of each fault.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from planted import (
    INPUT_BUGS,
    REFERENCE_BUGS,
    AlteredInputs,
    convert_to,
    golden_of,
    golden_without_stack,
    planted_in_the_reference,
)

from anespec.manifests.schema import WeightFormat
from anespec.manifests.store import Artifact
from anespec.validate.golden.figures import GoldenVerdict

FAMILIES = Path(__file__).parents[1] / "data" / "families"


def share(verdict: GoldenVerdict) -> float:
    """The largest error as a share of its limit; infinite where something else fails."""
    found = [*verdict.shards, *verdict.stack]
    others = any(f.stray_slots for f in verdict.shards) or any(f.not_finite for f in found)
    return float("inf") if others else max(f.error / f.limit for f in found)


def faults(artifact: Artifact, gguf: Path, backend: str) -> dict[str, float]:
    """The share of every planted fault that changes something in this family."""
    found = {}
    for name, alter in INPUT_BUGS.items():
        if artifact.manifest.pools and ("rope" not in name or artifact.manifest.ropes):
            altered = AlteredInputs(artifact, alter)
            try:
                found[name] = share(golden_without_stack(artifact, gguf, backend, altered))
            except ValueError:  # a mask that breaks its contract is refused
                found[name] = float("inf")
    for name in REFERENCE_BUGS:
        with planted_in_the_reference(name, 0):
            found[name] = share(golden_without_stack(artifact, gguf, backend))
    return found


def main() -> None:
    """Print a row for every family and backend."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("families", nargs="*", default=sorted(path.stem for path in FAMILIES.glob("*.gguf")))
    parser.add_argument("--weights", type=WeightFormat, default=WeightFormat.FP16)
    parser.add_argument("--backends", default="torch,openvino,mlx")
    parser.add_argument("--without-faults", action="store_true")
    options = parser.parse_args()
    for family in options.families:
        gguf = FAMILIES / f"{family}.gguf"
        with tempfile.TemporaryDirectory() as folder:
            artifact = convert_to(Path(folder), gguf, options.weights, context=192)
            for backend in options.backends.split(","):
                verdict = golden_of(artifact, gguf, backend)
                planted = {} if options.without_faults else faults(artifact, gguf, backend)
                words = [f"{name} {value:.2f}" for name, value in planted.items()]
                worst = max((*verdict.shards, *verdict.stack), key=lambda f: f.error / f.limit)
                unsure = max(f.unsure / f.tokens for f in verdict.shards)
                healthy = f"{worst.error:.4f} of {worst.limit:.4f}, {share(verdict):.2f}, unsure {unsure:.2f}"
                passed = "passes" if verdict.passed else "FAILS"
                sys.stdout.write(" | ".join([f"{family:18} {backend:9} {passed} {healthy}", *words]) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
