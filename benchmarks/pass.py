"""Measure milliseconds per pass, compared with llama.cpp and with reading the weights once, in one run.

    python benchmarks/pass.py model.gguf [--target cpu] [--backends torch openvino] [--json]
    python benchmarks/pass.py model.gguf --backends openvino --contexts 512 8192 --past 200

llama.cpp takes part if llama-cpp-python is installed. All contestants take turns in every round, so that
other load on the machine affects all.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from contexts import measure_contexts
from measure import Budget, Timing, describe, emit, gigabytes, machine, show_budgets, show_table
from numpy.typing import NDArray
from smoke_options import MODEL, command_line
from subjects import artifact_of, narrowed, pass_of, prefill
from turns import Contestant, Key, take_turns

from anespec.convert.options import ConvertOptions
from anespec.manifests.schema import Target
from anespec.runtime.backends import BACKENDS, OPENVINO, TORCH, open_verifier
from anespec.runtime.passes import Verifier, run_pass
from anespec.system.machine import processors

PEER = "llama.cpp"
READING = "reading the weights"
BUDGETED = {OPENVINO}
PREFILL_ROUNDS = 2


class WeightReader:
    """The shards' weights in memory, summed by as many threads as the backends use."""

    def __init__(self, artifact: Path, threads: int) -> None:
        files = sorted((artifact / "shards").rglob("weight.bin"))
        self.nbytes = sum(file.stat().st_size for file in files)
        words = np.concatenate([np.fromfile(file, np.uint64) for file in files])
        self._parts: Sequence[NDArray[np.uint64]] = np.array_split(words, threads)
        self._pool = ThreadPoolExecutor(threads)

    def read(self) -> int:
        """Return the sum of all words, which takes as long as reading them from memory."""
        return sum(int(part) for part in self._pool.map(np.add.reduce, self._parts))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--target", type=Target, choices=list(Target), default=Target.CPU)
    parser.add_argument("--block", type=int, default=4)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=[TORCH, OPENVINO])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8], help="T of the passes")
    parser.add_argument("--past", type=int, default=256, help="tokens before the measured pass")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prefill; 0 for none")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=processors())
    parser.add_argument(
        "--contexts", type=int, nargs="+", help="compare the pass in artifacts of these contexts instead"
    )
    parser.add_argument("--json", action="store_true")
    smoke = (MODEL, "--rows", 1, 4, "--past", 16, "--prompt", 32, "--rounds", 1)
    return parser.parse_args(command_line(parser, *smoke))


@dataclass(frozen=True)
class Report:
    """All figures of one run; timings by contestant and by rows (or tokens of the prompt)."""

    options: argparse.Namespace
    machine: Mapping[str, str | int | float]
    weight_bytes: int
    loading: dict[str, float]
    passes: dict[Key, Timing]
    prefills: dict[Key, Timing]

    @property
    def names(self) -> tuple[str, ...]:
        """Return llama.cpp, if it ran, then the backends."""
        return (*dict.fromkeys(name for name, _ in self.passes if name == PEER), *self.loading)

    def prefill_speeds(self) -> dict[str, float]:
        """Return the tokens per second by contestant."""
        return {name: 1e3 * tokens / timing.median for (name, tokens), timing in self.prefills.items()}

    def budgets(self) -> list[Budget]:
        """Return the ratios of medians that DESIGN.md section 9 limits; the reference backend has none."""
        found: list[Budget] = []
        speeds = self.prefill_speeds()
        for name in BUDGETED & self.loading.keys():
            if (four := self.passes.get((name, 4))) is not None:
                if (one := self.passes.get((name, 1))) is not None:
                    found.append(Budget(f"{name}: 4 rows / its own 1 row", four.median / one.median, 1.1))
                if (theirs := self.passes.get((PEER, 4))) is not None:
                    found.append(Budget(f"{name}: 4 rows / {PEER}, 4 rows", four.median / theirs.median, 0.6))
                reading = self.passes[READING, 0].median
                found.append(Budget(f"{name}: 4 rows / {READING} once", four.median / reading, 1.2))
            if {name, PEER} <= speeds.keys():
                found.append(Budget(f"{name}: prefill time / {PEER}", speeds[PEER] / speeds[name], 1 / 3))
        return found

    def as_json(self) -> dict[str, object]:
        """Return all figures."""
        return {
            "gguf": self.options.gguf.name,
            "target": self.options.target,
            "block": self.options.block,
            "past": self.options.past,
            **self.machine,
            "threads": self.options.threads,
            "weight_bytes": self.weight_bytes,
            "load_seconds": {name: round(seconds, 2) for name, seconds in self.loading.items()},
            "reading": self.passes[READING, 0].as_json(),
            "passes": {
                name: {
                    str(rows): timing.as_json() for (who, rows), timing in self.passes.items() if who == name
                }
                for name in self.names
            },
            "prefill_tokens_per_second": {n: round(speed, 1) for n, speed in self.prefill_speeds().items()},
            "budgets": [budget.as_json() for budget in self.budgets()],
        }

    def show(self) -> None:
        """Print the tables."""
        options, reading = self.options, self.passes[READING, 0]
        print(describe(self.machine))
        print(f"{options.gguf.name}, target {options.target}, {options.threads} threads: ms, median (least)")
        print(f"{READING} once, {gigabytes(self.weight_bytes)}: {cell(reading)}\n")
        rows = [[name, *(cell(self.passes.get((name, t))) for t in options.rows)] for name in self.names]
        show_table(("rows in the pass", *map(str, options.rows)), rows)
        for name, speed in self.prefill_speeds().items():
            print(f"prefill of {options.prompt} tokens, {name}: {speed:.0f} tokens/s")
        print()
        show_budgets(self.budgets())


def cell(timing: Timing | None) -> str:
    return f"{timing.median:.1f} ({timing.least:.1f})" if timing else "-"


def measure(options: argparse.Namespace) -> Report:
    """Convert, load all contestants, and let them take turns."""
    where = machine()
    artifact = artifact_of(options.gguf, ConvertOptions(target=options.target, block=options.block))
    reader = WeightReader(artifact, options.threads)
    verifiers: dict[str, Verifier] = {}
    loading: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        for backend in options.backends:
            began = time.perf_counter()
            verifiers[backend] = open_verifier(artifact, backend, options.threads)
            loading[backend] = time.perf_counter() - began
            stack.callback(verifiers[backend].close)
        context = min(verifier.shape.context for verifier in verifiers.values())
        longest = max(options.prompt, options.past + max(options.rows))
        if longest > context:
            raise SystemExit(
                f"{longest} tokens do not fit the context of {context}: lower --past or --prompt"
            )
        vocabulary = min(verifier.shape.vocabulary for verifier in verifiers.values())
        tokens = np.random.default_rng(1).integers(0, vocabulary, longest).tolist()

        past, fresh, prompt = tokens[: options.past], tokens[: max(options.rows)], tokens[: options.prompt]
        for verifier in verifiers.values():
            prefill(verifier, past)
        contestants: dict[Key, Contestant] = {(READING, 0): reader.read}
        for rows in options.rows:
            for name, verifier in verifiers.items():
                if rows <= verifier.shape.t_max:
                    contestants[name, rows] = partial(
                        run_pass, verifier, narrowed(verifier, pass_of(verifier, fresh[:rows], len(past)))
                    )
        prompts: dict[Key, Contestant] = {}
        if prompt:
            prompts |= {(n, len(prompt)): partial(prefill, v, prompt) for n, v in verifiers.items()}
        if find_spec("llama_cpp") is None:
            print(f"skipped: {PEER}, since llama-cpp-python is not installed", file=sys.stderr)
        else:
            from peer import Peer

            peer = stack.enter_context(Peer(options.gguf, options.threads, context))
            peer.prefill(past)
            for rows in options.rows:
                contestants[PEER, rows] = partial(peer.forward, fresh[:rows], len(past), all_logits=True)
            if prompt:
                prompts[PEER, len(prompt)] = partial(peer.prefill, prompt)
        passes = take_turns(contestants, options.rounds)
        return Report(options, where, reader.nbytes, loading, passes, take_turns(prompts, PREFILL_ROUNDS))


def main() -> None:
    options = arguments()
    report = measure_contexts(options) if options.contexts else measure(options)
    if options.json:
        emit(report.as_json())
    else:
        report.show()


if __name__ == "__main__":
    main()
