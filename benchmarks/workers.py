"""Run an artifact on several workers: how its shards are distributed, and the cost of handing a pass on.

    python benchmarks/workers.py model.gguf --budget 300MB

On Linux the worker's stand-in computes with torch, so the milliseconds mean nothing for a Mac: the run shows
that the data passes through the workers and gives the torch backend's bits.
"""

import argparse
import os
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
from measure import Timing, emit, gigabytes
from pydantic import ByteSize, TypeAdapter
from smoke_options import MODEL, command_line
from subjects import artifact_of, pass_of, prefill

from anespec.convert.options import ConvertOptions
from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact
from anespec.runtime.backends import BACKENDS, TORCH, WORKER, open_verifier
from anespec.runtime.backends.worker.sharing import BUDGET, WorkerLimits
from anespec.runtime.backends.worker.verifier import WorkerVerifier
from anespec.runtime.passes import Verifier, run_pass

PROMPT = [1, 5, 9, 13, 17, 21, 25]


def logits_of(verifier: Verifier, rounds: int) -> tuple[np.ndarray, Timing]:
    """Return the last pass's logits and the wall times of all passes."""
    prefill(verifier, PROMPT)
    plan = pass_of(verifier, PROMPT[:4], len(PROMPT))
    times, found = [], {}
    for _ in range(rounds):
        began = time.perf_counter()
        found = run_pass(verifier, plan)
        times.append(1000 * (time.perf_counter() - began))
    return np.stack([np.asarray(found[lane].logits) for lane in range(4)]), Timing(tuple(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--budget", type=TypeAdapter(ByteSize).validate_python, default=BUDGET)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compare", action="store_true", help="also run it without workers")
    options = parser.parse_args(command_line(parser, MODEL, "--rounds", 1, "--compare"))
    if sys.platform == "linux":
        os.environ.setdefault("ANESPEC_STANDIN_PYTHON", sys.executable)
    if (reason := BACKENDS[WORKER].unavailable()) is not None:
        print(f"skipped: missing: {reason}")
        return
    artifact = Artifact(artifact_of(options.gguf, ConvertOptions(target=Target.CPU)))
    began = time.perf_counter()
    with closing(open_verifier(artifact, WORKER, workers=WorkerLimits(options.budget))) as verifier:
        assert isinstance(verifier, WorkerVerifier)
        loaded = time.perf_counter() - began
        logits, timing = logits_of(verifier, options.rounds)
        trees = [[p, *p.children(recursive=True)] for p in map(psutil.Process, verifier.workers.pids)]
        facts = {
            "shards_gb": gigabytes(sum(shard.bytes for shard in artifact.manifest.shards)),
            "shards": [len(share) for share in verifier.workers.shares],
            "weights_gb": [gigabytes(sum(s.bytes for s in share)) for share in verifier.workers.shares],
            "resident_gb": [gigabytes(sum(p.memory_info().rss for p in tree)) for tree in trees],
            "load_seconds": round(loaded, 2),
            "pass": timing.as_json(),
        }
    if options.compare:
        with closing(open_verifier(artifact, TORCH)) as other:
            expected, alone = logits_of(other, options.rounds)
        facts |= {"without_workers": alone.as_json(), "same_bits": bool((logits == expected).all())}
    emit(facts)


if __name__ == "__main__":
    main()
