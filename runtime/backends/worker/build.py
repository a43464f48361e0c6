"""Build the worker's executable from the Swift sources in this package, or find the one built before.

It is stored in the user's cache folder under the SHA-256 of its sources, its build. The build is compiled in:
the header of the shared memory names a build, and a worker with another one refuses to run.
"""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil

from anespec.manifests.store import file_sha256
from anespec.runtime.backends.worker.process import WorkerProgram
from anespec.system.child_python import NEUTRAL_FOLDER
from anespec.system.errors import AnespecError, MissingPackageError, StorageError
from anespec.system.formatting import LONGEST_REASON, printable
from anespec.system.safe_files import Folder, first_link, open_file, require_safe_to_run
from anespec.system.user_folders import cache_folder, private_folder

SOURCES = "anespec.swift"
EXECUTABLE = "anespec-worker"
PROGRAM_VARIABLE = "ANESPEC_WORKER"
IDENTITY = Path("Sources/AnespecWorker/BuildIdentity.swift")
"""The source file that is generated for a build, so its content is not part of the hash."""

EMPTY_TEST = Path("Tests/AnespecWorkerTests/None.swift")
"""An empty test, since the package declares a test target that would otherwise have no sources."""

ZEROS = "0" * 64
MINIMUM_SWIFT = (6, 0)
VERSION_TIMEOUT = 60.0
"""Timeout in seconds for `swift --version`, which may look for Xcode the first time."""

INSTALL = "install Xcode or its command line tools (xcode-select --install), elsewhere Swift from swift.org"

_PARTIAL = re.compile(r"\.(\d+)\.[0-9a-f]+\.partial")
_STEP = re.compile(r"\[(\d+)/(\d+)\] (.+)")
_VERSION = re.compile(r"Swift version (\d+)\.(\d+)")

Report = Callable[[str], None]
"""A callback for progress; its argument describes the next step."""


@dataclass(frozen=True)
class WorkerSources:
    """The worker's Swift package in `folder`."""

    folder: Path

    @classmethod
    def installed(cls) -> "WorkerSources":
        """Return the sources that are installed with anespec; raise AnespecError if they are missing."""
        spec = find_spec(SOURCES)
        for place in (spec and spec.submodule_search_locations) or ():
            if (Path(place) / "Package.swift").is_file():
                return cls(Path(place))
        raise AnespecError("the worker's sources are missing; install anespec again")

    @property
    def files(self) -> list[Path]:
        """The compiled files, relative to `folder`, in a fixed order."""
        found = [path for path in (self.folder / "Sources").rglob("*") if path.is_file()]
        return sorted(path.relative_to(self.folder) for path in (*found, self.folder / "Package.swift"))

    @property
    def build(self) -> str:
        """The SHA-256 of the sources, in hexadecimal."""
        digest = hashlib.sha256()
        for file in (file for file in self.files if file != IDENTITY):
            content = (self.folder / file).read_bytes()
            digest.update(f"{file.as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
        return digest.hexdigest()

    def copy_to(self, folder: Path) -> None:
        """Write the sources to `folder`, with their build filled in."""
        for file in self.files:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.folder / file, folder / file)
        own = (self.folder / IDENTITY).read_text("utf-8")
        if own.count(ZEROS) != 1:
            raise AnespecError(f"{self.folder / IDENTITY}: lacks the build's line; install anespec again")
        (folder / IDENTITY).write_text(own.replace(ZEROS, self.build), "utf-8")
        (folder / EMPTY_TEST).parent.mkdir(parents=True)
        (folder / EMPTY_TEST).write_text("// Tests are no part of what is built.\n", "utf-8")


def workers_folder() -> Path:
    """Return the folder of the executables, each in a subfolder named by its build; it need not exist."""
    return cache_folder() / "workers"


def built_worker(sources: WorkerSources | None = None) -> WorkerProgram | None:
    """Return the worker that was built from `sources` (None: the installed ones); None if there is none.

    An executable that ANESPEC_WORKER names was built by hand: it is preferred, and its build is not compared.

    Raises:
        StorageError: the named executable cannot be read, or other users could replace the built one.
    """
    if by_hand := os.environ.get(PROGRAM_VARIABLE):
        try:
            with open_file(Path(by_hand)):
                return WorkerProgram((by_hand,), file_sha256(Path(by_hand)), compared=False)
        except OSError as error:
            raise StorageError(
                f"{by_hand}: the worker that {PROGRAM_VARIABLE} names cannot be read ({error.strerror})"
            ) from error
    build = (sources or WorkerSources.installed()).build
    path = workers_folder() / build / EXECUTABLE
    is_there = first_link(cache_folder(), f"workers/{build}/{EXECUTABLE}") is None and path.is_file()
    if not is_there or not os.access(path, os.X_OK):
        return None
    _require_safe(path)
    return WorkerProgram((str(path),), build)


def build_worker(
    report: Report, sources: WorkerSources | None = None, *, swift: str = "swift", again: bool = False
) -> WorkerProgram:
    """Build the worker, unless it has been built; with `again` build in any case.

    Raises:
        MissingPackageError: Swift is missing or too old.
        AnespecError: the worker does not compile.
        StorageError: there is no space to build it.
    """
    sources = sources or WorkerSources.installed()
    known = built_worker(sources)
    if known is not None and not again:
        return known
    _require_swift(swift)
    try:
        with private_folder(workers_folder()) as folder, _working_folder(folder) as partial:
            _require_safe(folder.path)
            work = folder.path / partial
            sources.copy_to(work)
            _compile(swift, work, report)
            built = work / ".build/release" / EXECUTABLE
            with folder.folder(sources.build, create=True) as place:
                if stat.S_ISDIR(place.mode(EXECUTABLE) or 0):
                    place.remove(EXECUTABLE)
                built.resolve().replace(place.path / EXECUTABLE)
    except OSError as error:
        raise StorageError(
            f"{workers_folder()}: the worker cannot be stored there ({error.strerror})"
        ) from error
    found = built_worker(sources)
    if found is None:
        raise AnespecError(f"{workers_folder()}: the worker was built but removed since; build it again")
    return found


def _require_safe(path: Path) -> None:
    """Raise StorageError if other users could replace the worker by another program."""
    require_safe_to_run(path, "the worker", "XDG_CACHE_HOME")


def _require_swift(swift: str) -> None:
    try:
        completed = subprocess.run(
            [swift, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            cwd=NEUTRAL_FOLDER,
            timeout=VERSION_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MissingPackageError(
            f"`{swift} --version` gave no answer for {VERSION_TIMEOUT:g} s; {INSTALL}"
        ) from None
    except OSError:
        raise MissingPackageError(f"Swift, which builds the worker, is not installed; {INSTALL}") from None
    found = _VERSION.search(completed.stdout)
    if found is None:
        lines = (completed.stderr.strip() or completed.stdout.strip()).splitlines() or ["it prints nothing"]
        raise MissingPackageError(
            f"`{swift} --version` prints no version ({printable(lines[0], LONGEST_REASON)}); {INSTALL}"
        )
    if (int(found[1]), int(found[2])) < MINIMUM_SWIFT:
        least = ".".join(map(str, MINIMUM_SWIFT))
        raise MissingPackageError(
            f"the worker needs Swift {least} or newer, this is {found[1]}.{found[2]}; {INSTALL}"
        )


@contextlib.contextmanager
def _working_folder(folder: Folder) -> Iterator[str]:
    """Yield a folder to build in and remove it afterwards, with those that killed builds left."""
    for path in folder.path.iterdir():
        found = _PARTIAL.fullmatch(path.name)
        if found is not None and not psutil.pid_exists(int(found[1])):
            # Another build may be removing the same folder.
            with contextlib.suppress(OSError):
                folder.remove(path.name)
    name = f".{os.getpid()}.{secrets.token_hex(8)}.partial"
    try:
        (folder.path / name).mkdir(mode=0o700)
        yield name
    finally:
        folder.remove(name)


def _compile(swift: str, work: Path, report: Report) -> None:
    """Run `swift build`; if it fails, raise an error with its first error message."""
    command = [swift, "build", "-c", "release", "--product", EXECUTABLE, "--package-path", str(work)]
    report("the worker's sources")
    # Swift leaves files in the temporary folder for each build folder, so TMPDIR is inside the build folder.
    own = work / ".tmp"
    own.mkdir()
    # In its own process group, so that a ^C can end the compilers that it started, too.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=NEUTRAL_FOLDER,
        env=os.environ | {"TMPDIR": str(own)},
        start_new_session=True,
    )
    lines: list[str] = []
    try:
        for line in process.stdout or ():
            lines.append(line.rstrip())
            if step := _STEP.match(line):
                report(printable(f"{step[3].strip()} ({step[1]} of {step[2]})"))
        code = process.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    if code:
        if any(os.strerror(errno.ENOSPC) in line for line in lines):
            raise StorageError(
                f"{work.parent}: the disk is too full to build the worker; free some space and build again"
            )
        errors = [line for line in lines if "error:" in line] or [line for line in lines if line]
        reason = errors[0].replace(f"{work}{os.sep}", "") if errors else f"swift ended with {code}"
        raise AnespecError(
            f"the worker cannot be built ({printable(reason, LONGEST_REASON)}); "
            "report it with the output of `swift --version`, or use another backend"
        )
