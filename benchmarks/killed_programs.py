"""Kill programs at random moments and run them again: the result must be that of an undisturbed run."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from faulty_daemon import PROGRAM

Fingerprint = dict[str, str]


@dataclass(frozen=True)
class Victim:
    """A command, the part of its result that must always be the same, and a check of killed runs.

    `check` raises RuntimeError if a killed run left something half-written.
    """

    name: str
    command: tuple[str, ...]
    result: Callable[[], Fingerprint]
    check: Callable[[], None]
    forget: Callable[[], None]


def fingerprint(path: Path, pattern: str) -> Fingerprint:
    """Return the files' hashes by name."""
    files = [path] if path.is_file() else sorted(path.rglob(pattern))
    return {
        str(file.relative_to(path.parent)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    }


def _run(victim: Victim, environment: dict[str, str], kill_after: float | None = None) -> float:
    """Run the command to its end, or kill it with its descendants; return the seconds."""
    began = time.monotonic()
    process = subprocess.Popen(
        [*PROGRAM, *victim.command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=kill_after)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return time.monotonic() - began
    if process.returncode:
        raise RuntimeError(f"{victim.name} ended with code {process.returncode}: {said[-600:].decode()}")
    return time.monotonic() - began


def survive(victim: Victim, kills: int, source: random.Random, environment: dict[str, str]) -> int:
    """Kill the command `kills` times, run it again each time, and return how many kills hit.

    Raises RuntimeError if anything is lost.
    """
    victim.forget()
    seconds = _run(victim, environment)
    expected, hits = victim.result(), 0
    for _ in range(kills):
        victim.forget()
        hits += _run(victim, environment, kill_after=source.uniform(0.3, 1.0) * seconds) < seconds
        victim.check()
        _run(victim, environment)
        if (found := victim.result()) != expected:
            changed = [name for name in expected | found if expected.get(name) != found.get(name)]
            raise RuntimeError(f"{victim.name}, killed and run again, leaves different files: {changed}")
    return hits


def converting(gguf: Path, folder: Path) -> Victim:
    """Return a conversion: its output does not exist until it is complete."""
    output = folder / "killed.anespec"

    def check() -> None:
        if output.exists() and not (output / "manifest.json").exists():
            raise RuntimeError(f"{output} exists without its manifest")

    def forget() -> None:
        for path in folder.glob("*killed.anespec*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    command = ("convert", str(gguf), "-o", str(output), "--target", "cpu", "--context", "256")
    return Victim("convert", command, lambda: fingerprint(output, "weight.bin"), check, forget)


def validating(artifact: Path, folder: Path) -> Victim:
    """Return a run of the gates: the artifact does not change, whatever happens to its verdicts."""
    copy = folder / "validated.anespec"

    def result() -> Fingerprint:
        return fingerprint(copy / "manifest.json", "") | fingerprint(copy / "shards", "weight.bin")

    def check() -> None:
        if result() != whole:
            raise RuntimeError(f"{copy} has changed since it was validated")

    def forget() -> None:
        shutil.rmtree(copy / "gates", ignore_errors=True)

    shutil.copytree(artifact, copy)
    whole = result()
    command = ("validate", str(copy), "--gate", "exactness", "--quick", "--backend", "openvino")
    return Victim("validate", command, result, check, forget)


def building(gguf: Path, folder: Path) -> Victim:
    """Return a datastore build that replaces an older one: at any time one of them exists, complete."""
    output, text = folder / "killed.datastore", folder / "corpus.txt"
    text.write_text("".join(f"Line {number} says {number * 7919 % 1009}.\n" for number in range(20_000)))
    older = folder / "older.txt"
    older.write_text("An older text.\n" * 10)
    command = ("datastore", "build", str(text), "--vocab", str(gguf), "-o", str(output), "--force")
    build_older = [*PROGRAM, *command[:2], str(older), *command[3:]]
    subprocess.run(build_older, check=True, capture_output=True)
    kept = output.read_bytes()
    whole: Fingerprint = {}

    def result() -> Fingerprint:
        whole.update(fingerprint(output, ""))
        return dict(whole)

    def check() -> None:
        if output.read_bytes() != kept and fingerprint(output, "") != whole:
            raise RuntimeError(f"{output} is neither the older datastore nor the new one")

    return Victim("datastore build", command, result, check, lambda: void(output.write_bytes(kept)))


def void(_: object) -> None:
    """Discard a value."""
