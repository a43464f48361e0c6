"""`swift` run on the worker's package, what it builds kept between runs.

    python tests/support/swift_build.py

builds it for the tests, while the first of them run. Without Swift it does nothing.
"""

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "swift"
SCRATCH = ROOT / "build" / "swift"
WORKER = SCRATCH / "debug" / "anespec-worker"
BUILT = SCRATCH / "built"
"""Says of which sources the build is."""


def swift(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `swift`, one at a time; skips the test where there is none."""
    path = shutil.which("swift")
    if path is None:
        pytest.skip("needs swift on the PATH (https://www.swift.org/install)")
    with _alone():
        return _run(path, *arguments)


def built_worker() -> Path:
    """The worker's executable, for debugging, with the tests of its package; built once for the same sources.

    Skips the test where there is no Swift.
    """
    path = shutil.which("swift")
    if path is None:
        pytest.skip("needs swift on the PATH (https://www.swift.org/install)")
    with _alone():
        sources = f"{path} {_sources()}"
        if not (WORKER.exists() and BUILT.exists() and BUILT.read_text() == sources):
            built = _run(path, "build", "--build-tests")
            assert built.returncode == 0, built.stdout + built.stderr
            BUILT.write_text(sources)
    return WORKER


@contextmanager
def _alone() -> Iterator[None]:
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with (SCRATCH / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [path, *arguments, "--package-path", str(PACKAGE), "--scratch-path", str(SCRATCH)]
    command += ["-Xswiftc", "-warnings-as-errors"]
    # A whole build of Swift is the longest of all waits.
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * PATIENCE)


def _sources() -> str:
    """A hash of the package."""
    found = hashlib.sha256()
    parts = ("Package.swift", "Sources/**/*", "Tests/**/*")
    for file in sorted(file for part in parts for file in PACKAGE.glob(part) if file.is_file()):
        content = file.read_bytes()
        found.update(f"{file.relative_to(PACKAGE)} {len(content)}\n".encode() + content)
    return found.hexdigest()


if __name__ == "__main__" and shutil.which("swift"):
    built_worker()
