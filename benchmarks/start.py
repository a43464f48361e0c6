"""Measure the time of `anespec generate` to its first token, and its memory relative to the artifact.

    python benchmarks/start.py 1gb.gguf
    python benchmarks/start.py 1gb.gguf --runs 5 --json

There are three starts: of a new GGUF, which is converted first; of a converted artifact without hashes and
verdicts; and the second start after the gates have run, like any later one. No start waits for the gates.
Files are always in the system's cache. Times are those of the run that was disturbed least; processor time is
given too, since other programs disturb it less. For a GGUF, llama-server (benchmarks/llama_server.py) takes
part with the same context and as many sequences: from its start to its first text, and its memory after as
many tokens.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from http_server import free_port, started
from llama_server import BINARY, serve_command
from measure import Budget, emit, gigabytes, machine, show_budgets
from smoke_options import MODEL, command_line
from subjects import artifact_of

from anespec.convert.planning.plan import ConvertOptions
from anespec.manifests.schema import Target
from anespec.manifests.store import Artifact
from anespec.system.machine import processors

TOKENS = 16
PROMPT = "Once upon a time"
POLL_SECONDS = 0.005

MAX_SECONDS_PER_GB = 2.0
MAX_SECONDS_PER_GB_CONVERTED = 4.0
MAX_SECONDS_PER_GB_NEW = 25.0
MAX_PEAK_RATIO = 1.6
MAX_STEADY_RATIO = 1.3


@dataclass(frozen=True)
class Start:
    """One run of the command: seconds to the first text, processor time until the end, and bytes.

    `peak` is the largest resident set of the whole run, `steady` the last one before the end.
    """

    seconds: float
    cpu_seconds: float
    peak: int
    steady: int


def start(model: Path, cache: Path, threads: int | None, gates: str = "never") -> Start:
    """Run the command to its end; raises SystemExit if it fails."""
    options = ["-p", PROMPT, "-n", str(TOKENS), "--ignore-eos"]
    options += ["--gates", gates]
    options += [] if threads is None else ["--threads", str(threads)]
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", "from anespec.cli.main import main; main()", "generate", str(model), *options],
        env=os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    first, peak, steady = None, 0, 0
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if process.stdout.read() and first is None:
            first = time.perf_counter()
        found = resident(process.pid)
        peak, steady = max(peak, found.get("VmHWM", 0)), found.get("VmRSS", 0) or steady
        time.sleep(POLL_SECONDS)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or first is None:
        raise SystemExit(f"generate ended with code {process.returncode}")
    return Start(first - began, usage.ru_utime + usage.ru_stime, peak, steady)


def peer_start(gguf: Path, artifact: Path, threads: int | None) -> Start:
    """Run llama-server with the artifact's context and sequences until it has generated as many tokens."""
    port, manifest = free_port(), Artifact(artifact).manifest
    command = serve_command(
        gguf,
        port,
        threads=threads or processors(),
        context=manifest.context,
        sequences=manifest.sequences,
    )
    body = {"prompt": PROMPT, "n_predict": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
    began = time.perf_counter()
    with started("llama-server", command, port, "/health") as server:
        with httpx.stream("POST", f"{server.url}/completion", json=body, timeout=None) as answer:
            lines = answer.raise_for_status().iter_lines()
            next(lines)
            seconds = time.perf_counter() - began
            for _ in lines:
                continue
        found, used = resident(server.process), psutil.Process(server.process).cpu_times()
    return Start(seconds, used.user + used.system, found["VmHWM"], found["VmRSS"])


@contextlib.contextmanager
def cache_folder() -> Iterator[Path]:
    """Yield an empty cache folder. Background compilation of a start may still write there."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def resident(pid: int) -> dict[str, int]:
    """Return a process's peak and current resident set in bytes, by the system's names; empty if it ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    fields = (line.partition(":")[::2] for line in lines)
    return {name: 1024 * int(value.split()[0]) for name, value in fields if name in ("VmHWM", "VmRSS")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path, help="a GGUF, which is converted for this, or an artifact")
    parser.add_argument("--runs", type=int, default=3, help="second starts; the fastest counts")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--context", type=int, help="slots of a sequence, for a GGUF")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(command_line(parser, MODEL, "--runs", 1))
    if not Path("/proc").is_dir():
        raise SystemExit("this benchmark reads memory from /proc, so it runs on Linux only")
    artifact, threads = options.model, options.threads
    starts: dict[str, Start] = {}
    if artifact.is_file():
        with cache_folder() as cache:
            starts["a GGUF never seen"] = start(artifact, cache, threads)
        artifact = artifact_of(artifact, ConvertOptions(target=Target.CPU, context=options.context))
    shutil.rmtree(artifact / "gates", ignore_errors=True)
    size = sum(file.stat().st_size for file in artifact.rglob("*") if file.is_file())
    with cache_folder() as cache:
        starts["an artifact already converted"] = start(artifact, cache, threads)
    with cache_folder() as cache:
        start(artifact, cache, threads, gates="now")
        later = [start(artifact, cache, threads) for _ in range(options.runs)]
    second = min(later, key=lambda run: run.seconds)
    starts["the second start"] = second
    peers = {}
    if options.model.is_file() and BINARY.exists():
        runs = [peer_start(options.model, artifact, threads) for _ in range(options.runs)]
        peers["llama-server"] = min(runs, key=lambda run: run.seconds)
    limits = (MAX_SECONDS_PER_GB_NEW, MAX_SECONDS_PER_GB_CONVERTED)[-len(starts) + 1 :]
    budgets = [
        *(
            Budget(f"{name} to the first token, s / GB", run.seconds / (size / 1e9), limit)
            for (name, run), limit in zip(starts.items(), limits, strict=False)
        ),
        Budget("second start to the first token, s / GB", second.seconds / (size / 1e9), MAX_SECONDS_PER_GB),
        Budget("peak memory / artifact", max(run.peak for run in later) / size, MAX_PEAK_RATIO),
        Budget("steady memory / artifact", max(run.steady for run in later) / size, MAX_STEADY_RATIO),
    ]
    if options.json:
        rows = {name: vars(run) for name, run in {**starts, **peers}.items()}
        emit({**machine(), "artifact_bytes": size, "starts": rows, "budgets": [b.as_json() for b in budgets]})
        return
    print(f"{artifact.name}: {gigabytes(size)}")
    for name, run in {**starts, **peers}.items():
        print(
            f"{name}: {run.seconds:.2f} s to the first token, {run.cpu_seconds:.2f} s of processor time, "
            f"{gigabytes(run.peak)} peak, {gigabytes(run.steady)} steady"
        )
    show_budgets(budgets)


if __name__ == "__main__":
    main()
