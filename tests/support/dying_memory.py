"""Ends a process at every byte that it writes of a memory, and at every call that changes the file system.

Run as a program: it prints what came back wrong, a line each, and then how often a process was ended.
"""

import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from toy_learner import ToyLearner

from anespec.runtime.drafters.memory import owner_memory
from anespec.runtime.drafters.memory.learner import fold_whole
from anespec.runtime.drafters.memory.owner_files import OwnerFiles, owner_folder
from anespec.runtime.drafters.memory.owner_memory import OwnerMemory
from anespec.runtime.drafters.memory.records import Head
from anespec.system.safe_files import Folder

SIZE = 1024
LESSONS = [(np.arange(number, 2 * number + 3, dtype=np.int32), number) for number in range(8)]
STEP = 97
"""Bytes between two ends; calls that change names are never skipped."""

WRITE = OwnerFiles.write


class Dying:
    """Counts what is written, and ends the process when it is enough, as kill -9 would."""

    def __init__(self, left: int) -> None:
        self.left = left

    def write(self, raw: io.FileIO, data: bytes) -> int:
        if len(data) >= self.left:
            raw.write(data[: self.left])
            os._exit(9)
        self.left -= len(data)
        return raw.write(data)

    def call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left <= 0:
                os._exit(9)
            return function(*arguments, **named)

        return counted

    def patch(self) -> None:
        dying, new_file = self, Folder.new_file

        class Stream(io.RawIOBase):
            def __init__(self, raw: io.FileIO) -> None:
                self.raw = raw

            def writable(self) -> bool:
                return True

            def fileno(self) -> int:
                return self.raw.fileno()

            def write(self, data: Any) -> int:
                return dying.write(self.raw, bytes(data))

            def close(self) -> None:
                self.raw.close()
                super().close()

        @contextmanager
        def create(folder: Folder, name: str, mode: int = 0o666) -> Iterator[Any]:
            with Stream(new_file(folder, name, mode)) as stream:
                yield stream

        Folder.new_file = lambda *arguments: Stream(new_file(*arguments))  # type: ignore
        Folder.create = create  # type: ignore
        for name in ("replace", "unlink", "mkdir", "fsync", "fchmod"):
            setattr(os, name, self.call(getattr(os, name)))


def remove_first(files: OwnerFiles, head: Head, image: Any, texts: Any) -> None:
    """A planted fault: journals go before the snapshot is there that contains them."""
    for path in files.path.glob("journal-*"):
        path.unlink()
    WRITE(files, head, image, texts)


def opened(folder: Folder) -> OwnerMemory:
    files = OwnerFiles(folder, owner_folder("a"))
    return OwnerMemory(ToyLearner(), SIZE, Head(vocabulary="v", owner="a", learner="toy", version=1), files)


def live(root: Path, left: int, tell: int) -> None:
    """Learn all that is not learnt yet, and say each that is; three runs, some with a snapshot."""
    Dying(left).patch()
    with Folder.open(root) as folder:
        for run in range(3):
            memory = opened(folder)
            done = ToyLearner().facts(memory.image).requests
            for lesson in LESSONS[done : 3 * run + 3]:
                memory.fold(*lesson)
                os.write(tell, b".")
            owner_memory.SNAPSHOT_TOKENS = 1 if run != 1 else 1 << 15
            memory.flush()


def images() -> list[bytes]:
    """After no lesson, one, and so on."""
    learner, image = ToyLearner(), ToyLearner().fresh(SIZE)
    found = [image.tobytes()]
    for lesson in LESSONS:
        fold_whole(learner, image, *lesson)
        found.append(image.tobytes())
    return found


def main() -> None:
    os.fsync = lambda _: None  # a process that ends takes nothing from the system
    if "planted" in sys.argv:
        OwnerFiles.write = remove_first  # type: ignore
    right, left, ends, code = images(), 1, 0, 9
    while code == 9:
        with tempfile.TemporaryDirectory() as name:
            read, write = os.pipe()
            if (child := os.fork()) == 0:
                live(Path(name), left, write)
                os._exit(0)
            os.close(write)
            told = 0
            while said := os.read(read, 100):
                told += len(said)
            os.close(read)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            with Folder.open(Path(name)) as folder:
                found = opened(folder).image.tobytes()
                if found not in right[told : told + 2]:
                    known = right.index(found) if found in right else "others"
                    sys.stdout.write(f"ended after {left}: {told} were told, {known} are known\n")
                # Whoever goes on from there writes, and leaves nothing lying.
                owner_memory.SNAPSHOT_TOKENS = 1
                memory = opened(folder)
                memory.fold(*LESSONS[0])
                memory.flush()
                if [path.name for path in (Path(name) / owner_folder("a")).iterdir()] != ["snapshot"]:
                    sys.stdout.write(f"ended after {left}: something is left\n")
                owner_memory.SNAPSHOT_TOKENS = 1 << 15
            left, ends = left + (1 if ends % 3 else STEP), ends + 1
    sys.stdout.write(f"{ends} ends, {code}\n")


if __name__ == "__main__":
    main()
