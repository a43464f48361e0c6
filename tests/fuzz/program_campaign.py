"""Shards with changed programs: each runs, or is refused in a sentence that names it.

`make fuzz` looks through thousands and says what was slowest and largest. A case is known by its number.
"""

import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
from graphs import layers
from program_changes import changed

from anespec.convert.package import write_package
from anespec.manifests.schema import AttentionShape, WeightFormat
from anespec.runtime.backends.portable.openvino_cpu.runner import OpenVINORunner
from anespec.runtime.backends.portable.program import Program, load_program
from anespec.runtime.backends.portable.torch_cpu.runner import TorchRunner
from anespec.runtime.backends.runner import ShardRunner
from anespec.system.errors import ArtifactError

MODEL = Path("Data", "com.apple.CoreML", "model.mlmodel")
WEIGHTS = (
    WeightFormat.FP16,
    WeightFormat.INT8_CHANNEL,
    WeightFormat.LUT8,
    WeightFormat.LUT6,
    WeightFormat.INT4_BLOCK32,
)
Make = Callable[[Program, int], ShardRunner]
MAKERS: dict[str, Make] = {"torch": TorchRunner, "openvino": OpenVINORunner}


class Shards:
    """Packages in one form of weights each, of which one is changed at a time."""

    def __init__(self, folder: Path) -> None:
        self.packages = [folder / f"{weights}.mlpackage" for weights in WEIGHTS]
        for package, weights in zip(self.packages, WEIGHTS, strict=True):
            shape = AttentionShape.PER_KV_HEAD if weights is WeightFormat.FP16 else AttentionShape.GROUPED
            write_package(layers(shape, weight_format=weights), package)
        self.model_files = [(package / MODEL).read_bytes() for package in self.packages]
        self.programs = [load_program(package) for package in self.packages]

    def pursue(self, make: Make, seed: int) -> str:
        """Change a shard, load it and run a pass; says how it ended.

        Anything but an ArtifactError that names the shard comes out of here.
        """
        random = Random(seed)
        which = random.randrange(len(self.packages))
        package, whole = self.packages[which], self.programs[which]
        words, content = changed(self.model_files[which], random)
        (package / MODEL).write_bytes(content)
        try:
            program = load_program(package)
            if program.inputs != whole.inputs or program.states != whole.states:
                return f"{words}: does not fit its manifest"
            runner = make(program, 1)
            runner.run(feed(program))
            runner.close()
        except ArtifactError as error:
            text = str(error)
            assert text.startswith(str(package)), text
            assert "\n" not in text, text
            return f"{words}: {text}"
        finally:
            (package / MODEL).write_bytes(self.model_files[which])
        return f"{words}: runs"


def feed(program: Program) -> dict[str, np.ndarray]:
    """A pass of four rows, each writing a slot of its own."""
    made = {
        name: np.full([4 if size is None else size for size in shape], 0.1, np.float16)
        for name, shape in program.inputs.items()
    }
    made["kv_write_mask"] = np.eye(64, 4, dtype=np.float16)[None, None]
    return made


def main(cases: int) -> int:
    """Run cases on both libraries, every eighth on OpenVINO; returns how many failed."""
    failed, last_resorts, slowest = 0, 0, (0.0, "")
    with tempfile.TemporaryDirectory() as folder:
        shards = Shards(Path(folder))
        for seed in range(cases):
            library = "openvino" if seed % 8 == 0 else "torch"
            started = time.process_time()
            try:
                end = shards.pursue(MAKERS[library], seed)
            except Exception:
                failed += 1
                sys.stdout.write(f"case {seed} on {library}:\n{traceback.format_exc()}\n")
                continue
            last_resorts += "cannot run it" in end
            slowest = max(slowest, (time.process_time() - started, f"case {seed} on {library}: {end}"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    sys.stdout.write(
        f"{cases} changed programs, {failed} failed, {last_resorts} refused by a library only, "
        f"{peak} MiB at most\nslowest: {slowest[0]:.2f} s, {slowest[1]}\n"
    )
    return failed


if __name__ == "__main__":
    sys.exit(min(1, main(int(sys.argv[1]))))
