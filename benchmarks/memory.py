"""Measure the cost of the draft memory: opening it, starting with it, and learning while passes run.

    python benchmarks/memory.py model.anespec (or a GGUF, which is converted for this)
    python benchmarks/memory.py model.anespec --size 32MB --runs 10 --json

A memory is filled with texts that never repeat. Opened are a snapshot alone, and one with the longest journal
that an orderly end leaves. A start is `anespec generate` of one token, with and without the memory in turn.
The median of the differences of the pairs counts, since other load slows both runs of a pair alike. Files are
in the system's cache.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from measure import Budget, Timing, emit, machine, show_budgets
from numpy.typing import NDArray
from smoke_options import MODEL, command_line
from subjects import artifact_of

from anespec.convert.options import ConvertOptions
from anespec.gguf.container import GGUFFile
from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact
from anespec.runtime.drafters.memory import tenant_memory
from anespec.runtime.drafters.memory.learner import Learner
from anespec.runtime.drafters.memory.store import vocabulary_key
from anespec.runtime.drafters.memory.tenant_memory import SNAPSHOT_TOKENS, TenantMemory
from anespec.runtime.drafters.memory.vocabulary_memory import VocabularyMemory
from anespec.runtime.drafters.mix.learner import MixLearner
from anespec.runtime.drafters.mix.traits import traits_of
from anespec.runtime.text.tokenizer import Tokenizer
from anespec.system.options import read_size

MAX_START_MS = 50.0
MAX_LEARNING_MS = 5.0

TEXT_TOKENS = 800
"""The tokens of a request, half of which are its answer."""


class Texts:
    """Texts that never repeat."""

    def __init__(self, vocabulary: int) -> None:
        self._random = np.random.default_rng(1)
        self._vocabulary = vocabulary

    def next(self) -> NDArray[np.int32]:
        return self._random.integers(0, self._vocabulary, TEXT_TOKENS, np.int32)


def milliseconds(work: Callable[[], object]) -> float:
    """Return how long `work` takes."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def fill(folder: Path, learner: Learner, key: str, size: int, texts: Texts) -> float:
    """Learn until the memory is full, and write it; return the used share of its space."""
    memory = VocabularyMemory(learner, size, key, folder)
    tenant = memory.of("")
    while learner.facts(tenant.image).occupancy < 0.95 and learner.facts(tenant.image).tokens < 2_000_000:
        tenant.fold(texts.next(), TEXT_TOKENS // 2)
    memory.close()
    return learner.facts(tenant.image).occupancy


def opening(folder: Path, learner: Learner, key: str, size: int, runs: int) -> Timing:
    """Return the times of opening a tenant's memory, including its folder and lock."""
    samples = []
    for _ in range(runs):
        memory = VocabularyMemory(learner, size, key, folder)
        samples.append(milliseconds(lambda memory=memory: memory.of("")))
        memory.close()
    return Timing(tuple(samples))


def lengthen_journal(folder: Path, learner: Learner, key: str, size: int, texts: Texts) -> None:
    """Learn as much as possible without a new snapshot."""
    memory = VocabularyMemory(learner, size, key, folder)
    for _ in range(SNAPSHOT_TOKENS // TEXT_TOKENS - 1):
        memory.of("").fold(texts.next(), TEXT_TOKENS // 2)
    memory.close()


def learning(tenant: TenantMemory, texts: Texts, done: Callable[[], bool]) -> Timing:
    """Return the times of learning one request after another until `done`."""
    samples = []
    while not done() or not samples:
        text = texts.next()
        samples.append(milliseconds(lambda text=text: tenant.fold(text, TEXT_TOKENS // 2)))
        time.sleep(0.001)
    return Timing(tuple(samples))


def held(folder: Path, learner: Learner, key: str, size: int, texts: Texts) -> tuple[Timing, Timing, Timing]:
    """Return the times of learning alone, the worst during each snapshot, and those of snapshots."""
    tenant_memory.SNAPSHOT_SECONDS = float("inf")
    memory = VocabularyMemory(learner, size, key, folder)
    tenant = memory.of("")
    end = time.monotonic() + 3
    alone = learning(tenant, texts, lambda: time.monotonic() > end)
    beside: list[float] = []
    writing: list[float] = []
    for _ in range(10):
        saver = threading.Thread(target=lambda: writing.append(milliseconds(tenant.save)))
        saver.start()
        beside.append(max(learning(tenant, texts, lambda saver=saver: not saver.is_alive()).samples))
    memory.close()
    return alone, Timing(tuple(beside)), Timing(tuple(writing))


@dataclass(frozen=True)
class Start:
    """`anespec generate` to the end of its one token: wall time and processor time in milliseconds."""

    wall: float
    processors: float


def start(artifact: Path, memory: str) -> Start:
    """Run the command; raises SystemExit if it fails."""
    command = [
        sys.executable,
        "-m",
        "anespec",
        "generate",
        str(artifact),
        "-p",
        "Once",
        "-n",
        "1",
        "--gates",
        "now",
    ]
    options = ["--threads", "1", "--drafter", "auto", "--draft-memory", memory]
    began = time.perf_counter()
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen([*command, *options], stdout=nowhere, stderr=nowhere)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"generate ended with code {process.returncode}")
    return Start((time.perf_counter() - began) * 1e3, (usage.ru_utime + usage.ru_stime) * 1e3)


def columns(starts: Sequence[Start]) -> tuple[Timing, Timing]:
    """Return the wall times and the processor times of several starts."""
    return Timing(tuple(each.wall for each in starts)), Timing(tuple(each.processors for each in starts))


def difference(some: Timing, others: Timing) -> float:
    """Return the median difference of the pairs."""
    return statistics.median(a - b for a, b in zip(some.samples, others.samples, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, help="an artifact, or a GGUF, which is converted for this")
    parser.add_argument("--size", type=read_size, default=32_000_000)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(command_line(parser, MODEL, "--size", "1MB", "--runs", 1))
    facts = machine()
    artifact = options.model
    if artifact.is_file():
        artifact = artifact_of(artifact, ConvertOptions(target=Target.CPU))
    with GGUFFile(Artifact(artifact).tokens_path()) as file:
        tokenizer = Tokenizer.from_gguf(file)
    learner, key = MixLearner(traits_of(tokenizer)), vocabulary_key(tokenizer.vocabulary_hash)
    texts, size = Texts(tokenizer.vocabulary_size), options.size
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        occupancy = fill(folder, learner, key, size, texts)
        plain = opening(folder, learner, key, size, options.runs)
        lengthen_journal(folder, learner, key, size, texts)
        journal = opening(folder, learner, key, size, options.runs)
        start(artifact, name)  # Compile and measure what is done only once.
        pairs = [(start(artifact, name), start(artifact, "none")) for _ in range(options.runs)]
        alone, beside, writing = held(folder, learner, key, size, texts)
    with_memory, cpu_with = columns([each for each, _ in pairs])
    without, cpu_without = columns([each for _, each in pairs])
    budgets = [
        Budget("opening a snapshot, ms", plain.least, MAX_START_MS),
        Budget("opening it with the longest journal, ms", journal.least, MAX_START_MS),
        Budget("start with it - start without, ms", difference(with_memory, without), MAX_START_MS),
        Budget("the same in processor time, ms", difference(cpu_with, cpu_without), MAX_START_MS),
        Budget("learning a request, worst while a snapshot is written - alone, ms",
               beside.least - alone.least, MAX_LEARNING_MS),
    ]  # fmt: skip
    timings = {
        "opening": plain, "opening with a journal": journal,
        "start with": with_memory, "start without": without,
        "the same, of processors": cpu_with, "the same, of processors, without": cpu_without,
        "learning a request": alone, "learning beside a snapshot, worst of each": beside,
        "writing a snapshot": writing,
    }  # fmt: skip
    if options.json:
        emit({
            **facts, "size": size, "occupancy": round(occupancy, 3),
            "timings": {name: timing.as_json() for name, timing in timings.items()},
            "budgets": [budget.as_json() for budget in budgets],
        })  # fmt: skip
        return
    print(f"{facts['machine']}, load {facts['load_before']}: {size / 1e6:.0f} MB, {occupancy:.0%} full")
    for what, timing in timings.items():
        worst = max(timing.samples)
        print(f"{what}: {timing.median:.2f} ms median, {timing.least:.2f} least, {worst:.2f} worst")
    show_budgets(budgets)


if __name__ == "__main__":
    main()
