"""`swift` run on the worker's package, what it builds kept between runs."""

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "swift"
SCRATCH = ROOT / "build" / "swift"


def swift(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `swift`, one at a time; skips the test where there is none."""
    path = shutil.which("swift")
    if path is None:
        pytest.skip("needs swift on the PATH (https://www.swift.org/install)")
    SCRATCH.mkdir(parents=True, exist_ok=True)
    command = [path, *arguments, "--package-path", str(PACKAGE), "--scratch-path", str(SCRATCH)]
    command += ["-Xswiftc", "-warnings-as-errors"]
    with (SCRATCH / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
