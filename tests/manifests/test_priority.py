"""A process that leaves the processors to others does so beyond its own session."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

AUTOGROUP = Path("/proc/self/autogroup")

LOWER = (
    "from anespec.system.child_python import take_low_priority; take_low_priority(7); "
    f"import os, pathlib; group = pathlib.Path({str(AUTOGROUP)!r}); "
    "print(os.nice(0), group.read_text() if group.exists() else '')"
)


def lowered(*, own_session: bool) -> tuple[int, str]:
    """Return a process's niceness after it was lowered, and what Linux says of its session: empty in some."""
    found = subprocess.run(
        [sys.executable, "-c", LOWER],
        start_new_session=own_session,
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    nice, session = found.stdout.split(" ", 1)
    return int(nice), session.strip()


def test_niceness_counts_against_other_processes() -> None:
    nice = os.nice(0) + 7
    assert lowered(own_session=True)[0] == lowered(own_session=False)[0] == nice


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="needs Linux's autogroups")
def test_a_session_of_its_own_is_nice_and_another_one_stays() -> None:
    before = AUTOGROUP.read_text().strip()
    own = lowered(own_session=True)[1]
    # Where autogroups are switched off, or for processes in the root one, the file is empty.
    assert own.endswith(" nice 7") or not own
    assert lowered(own_session=False)[1] == before
    assert AUTOGROUP.read_text().strip() == before
