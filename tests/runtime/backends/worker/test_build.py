"""Building the worker: found again by its sources, and one clear sentence for whatever is in the way."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waiting import until

from anespec.runtime.backends.worker import build
from anespec.runtime.backends.worker.build import (
    IDENTITY,
    WorkerSources,
    build_worker,
    built_worker,
    workers_folder,
)
from anespec.system.errors import AnespecError, MissingPackageError, StorageError
from anespec.system.safe_files import Folder

VERSION = "Swift version 6.1.2 (swift-6.1.2-RELEASE)"
BUILDS = """
echo "Building for production..."
echo "[1/2] Compiling AnespecWorker Arena.swift"
cd "$7" && mkdir -p .build/release && cd .build/release
cp ../../Sources/AnespecWorker/BuildIdentity.swift anespec-worker && chmod +x anespec-worker
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerSources:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ANESPEC_WORKER", raising=False)
    folder = tmp_path / "swift"
    (folder / IDENTITY).parent.mkdir(parents=True)
    (folder / IDENTITY).write_text(f'public let buildIdentity = "{"0" * 64}"\n')
    (folder / "Package.swift").write_text("// the package\n")
    return WorkerSources(folder)


def swift(tmp_path: Path, builds: str = BUILDS, version: str = VERSION) -> str:
    """A program that says it is Swift."""
    path = tmp_path / "swift-stub"
    path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{version}"; exit 0; fi\n{builds}')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_worker_is_built_once_and_found_by_its_sources(sources: WorkerSources, tmp_path: Path) -> None:
    assert built_worker(sources) is None
    said: list[str] = []
    program = build_worker(said.append, sources, swift=swift(tmp_path))
    assert said == ["the worker's sources", "Compiling AnespecWorker Arena.swift (1 of 2)"]
    assert Path(program.command[0]).read_text() == f'public let buildIdentity = "{sources.build}"\n'
    assert program.expected_build == bytes.fromhex(sources.build)
    assert build_worker(said.append, sources, swift="/nowhere") == built_worker(sources) == program
    assert [path.name for path in workers_folder().iterdir()] == [sources.build]
    (sources.folder / "Package.swift").write_text("// another\n")
    assert built_worker(sources) is None


def test_a_worker_where_others_may_write_is_not_run(sources: WorkerSources, tmp_path: Path) -> None:
    planted = workers_folder() / sources.build / "anespec-worker"
    planted.parent.mkdir(parents=True)
    planted.write_text("#!/bin/sh\n")
    planted.chmod(0o755)
    workers_folder().parent.chmod(0o777)
    with pytest.raises(StorageError, match=r"anespec: other users can change .* set XDG_CACHE_HOME to"):
        built_worker(sources)
    with pytest.raises(StorageError, match="the worker would be run from there"):
        build_worker(lambda _: None, sources, swift=swift(tmp_path))


def test_no_worker_is_built_where_others_may_replace_it(sources: WorkerSources, tmp_path: Path) -> None:
    cache = workers_folder().parent.parent
    cache.mkdir()
    cache.chmod(0o777)
    said: list[str] = []
    with pytest.raises(StorageError, match="cache: other users can change its content"):
        build_worker(said.append, sources, swift=swift(tmp_path))
    assert not said
    assert list(workers_folder().iterdir()) == []


def test_the_identity_is_no_part_of_the_sources_hash(sources: WorkerSources) -> None:
    before = sources.build
    (sources.folder / IDENTITY).write_text("another")
    assert sources.build == before


def test_the_installed_sources_are_those_of_the_repository() -> None:
    assert (WorkerSources.installed().folder / IDENTITY).read_text().count("0" * 64) == 1


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (
            "Swift version 5.10 (swift-5.10-RELEASE)",
            "the worker needs Swift 6.0 or newer, this is 5.10; install",
        ),
        ("xcrun: error: invalid active developer path", "prints no version .xcrun: error: invalid active"),
    ],
)
def test_a_swift_that_cannot_do_it_is_said(
    sources: WorkerSources, tmp_path: Path, version: str, said: str
) -> None:
    with pytest.raises(MissingPackageError, match=said):
        build_worker(print, sources, swift=swift(tmp_path, version=version))


def test_no_swift_is_said(sources: WorkerSources) -> None:
    with pytest.raises(
        MissingPackageError, match="Swift, which builds the worker, is not installed; install Xcode"
    ):
        build_worker(print, sources, swift="/nowhere/swift")


def test_a_build_that_fails_is_said_with_its_first_error_and_leaves_nothing(
    sources: WorkerSources, tmp_path: Path
) -> None:
    fails = 'echo "$7/Sources/A.swift:3:1: error: cannot find x in scope"; echo "error: fatalError"; exit 1'
    with pytest.raises(
        AnespecError, match=r"cannot be built \(Sources/A.swift:3:1: error: cannot find x in sc"
    ):
        build_worker(print, sources, swift=swift(tmp_path, builds=fails))
    assert not list(workers_folder().iterdir())


SCRIPT = """
import sys
from pathlib import Path
from anespec.runtime.backends.worker.build import WorkerSources, build_worker
build_worker(print, WorkerSources(Path(sys.argv[1])), swift=sys.argv[2])
"""


def test_an_interrupt_ends_the_compilers_too_and_leaves_nothing(
    sources: WorkerSources, tmp_path: Path
) -> None:
    waits = f'sh -c "echo \\$\\$ > {tmp_path}/pid; sleep 600" & wait'
    command = [sys.executable, "-c", SCRIPT, str(sources.folder), swift(tmp_path, builds=waits)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as building:
        # The script writes its number before it begins to sleep, and the file is there before the number.
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
        building.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in building.communicate()[1]
    compiler = int((tmp_path / "pid").read_text())
    # Its parent is gone, too, so nobody may have noted its end.
    is_over = not psutil.pid_exists(compiler) or psutil.Process(compiler).status() == psutil.STATUS_ZOMBIE
    assert is_over
    assert not list(workers_folder().iterdir())


def test_swift_that_says_nothing_is_one_sentence(
    sources: WorkerSources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "VERSION_TIMEOUT", 0.2)
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o755)
    with pytest.raises(MissingPackageError, match=r"gave no answer for 0\.2 s; install"):
        build_worker(lambda _: None, sources, swift=str(silent))


def test_a_version_that_is_no_text_is_one_sentence(sources: WorkerSources, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    odd.write_text("#!/bin/sh\nprintf '\\377\\376'\n")
    odd.chmod(0o755)
    with pytest.raises(MissingPackageError, match="prints no version"):
        build_worker(lambda _: None, sources, swift=str(odd))


@pytest.mark.parametrize("planted", ["folder", "link"])
def test_what_is_no_executable_of_ours_is_not_taken_for_one(
    sources: WorkerSources, tmp_path: Path, planted: str
) -> None:
    place = workers_folder() / sources.build
    place.mkdir(parents=True, mode=0o700)
    if planted == "folder":
        (place / "anespec-worker" / "inside").mkdir(parents=True)
    else:
        (place / "anespec-worker").symlink_to("/bin/true")
    assert built_worker(sources) is None
    found = build_worker(lambda _: None, sources, swift=swift(tmp_path))
    assert not Path(found.command[0]).is_symlink()
    assert Path(found.command[0]).is_file()


def test_a_worker_by_hand_that_is_a_pipe_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv("ANESPEC_WORKER", str(tmp_path / "pipe"))
    with pytest.raises(StorageError, match="is a pipe or a device"):
        built_worker()


def test_two_builds_may_remove_what_a_killed_one_left(
    sources: WorkerSources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    (workers_folder() / f".{gone.pid}.0123456789abcdef.partial").mkdir(parents=True)
    removes = Folder.remove

    def taken_away(folder: Folder, name: str) -> None:
        removes(folder, name)
        if name.startswith(f".{gone.pid}."):
            raise FileNotFoundError(name)

    monkeypatch.setattr(Folder, "remove", taken_away)
    build_worker(lambda _: None, sources, swift=swift(tmp_path))
    assert [path.name for path in workers_folder().iterdir()] == [sources.build]


def test_a_full_disk_is_what_the_sentence_says(sources: WorkerSources, tmp_path: Path) -> None:
    says = 'echo "error: Invalid manifest"\necho "LLVM ERROR: IO failure: No space left on device"\nexit 1\n'
    with pytest.raises(StorageError, match="too full to build the worker; free some space"):
        build_worker(lambda _: None, sources, swift=swift(tmp_path, says))


def test_what_swift_leaves_among_temporary_files_goes(sources: WorkerSources, tmp_path: Path) -> None:
    """It keeps lock files there, named by the path of every folder that it ever built in."""
    seen = tmp_path / "seen"
    program = build_worker(
        lambda _: None,
        sources,
        swift=swift(tmp_path, f'touch "$TMPDIR/lock"; echo "$TMPDIR" > {seen}\n{BUILDS}'),
    )
    assert Path(seen.read_text()).is_relative_to(workers_folder())
    assert [path.name for path in workers_folder().iterdir()] == [Path(program.command[0]).parent.name]
