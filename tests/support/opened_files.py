"""Which files a program and all that it starts look for in a folder, by what the system is asked (strace)."""

import re
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

STRACE = shutil.which("strace")

_CALL = re.compile(r'\w+\((?:AT_FDCWD, )?"((?:[^"\\]|\\.)*)"')
"""A call whose path is not relative to an open folder, with the path."""

_OPENS = re.compile(r"(?:open(?:at2?)?|execve(?:at)?|creat)\(")


def traced(log: Path, *command: object) -> list[str]:
    """The command that notes in `log` which files are asked for, in all processes."""
    assert STRACE is not None
    options = ["-f", "-qq", "--seccomp-bpf", "-s", "4096", "-e", "trace=%file", "-o", str(log)]
    return [STRACE, *options, *map(str, command)]


def traces_here() -> bool:
    """Whether programs can be traced: strace is there, and the system allows it."""
    if STRACE is None:
        return False
    done = subprocess.run([STRACE, "-qq", "-o", "/dev/null", "true"], capture_output=True, check=False)
    return done.returncode == 0


def opened_in(folder: Path, log: Path, installed: Collection[Path]) -> set[str]:
    """The paths in a folder that were opened or run, whether they are there or not, as they were named.

    What lies in one of the `installed` folders is left out: libraries name their own files relative to the
    folder that they run in, which is / for processes of ours.
    """
    found = set()
    for line in log.read_text(errors="replace").splitlines():
        call = _CALL.search(line)
        if call is None or not _OPENS.search(line):
            continue
        name = Path(call[1])
        meant = [Path(base, name).resolve() for base in (folder, "/")]
        if any(path.is_relative_to(place) for path in meant for place in installed):
            continue
        if meant[0].is_relative_to(folder):
            found.add(meant[0].relative_to(folder).as_posix())
        elif not name.is_absolute():
            found.add(call[1])
    return found
