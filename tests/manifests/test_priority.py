"""A process that leaves the processors to others does so beyond its own session."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOWER = (
    "from anespec.system.child_python import take_low_priority; take_low_priority(7); "
    "import os, pathlib; group = pathlib.Path('/proc/self/autogroup'); "
    "print(os.nice(0), group.read_text().split()[-1] if group.exists() else 'none')"
)


def lowered(*, own_session: bool) -> tuple[str, ...]:
    found = subprocess.run(
        [sys.executable, "-c", LOWER],
        start_new_session=own_session,
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return tuple(found.stdout.split())


def test_niceness_counts_against_other_processes() -> None:
    nice = str(os.nice(0) + 7)
    assert lowered(own_session=True)[0] == lowered(own_session=False)[0] == nice


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="needs Linux's autogroups")
def test_a_session_of_its_own_is_nice_and_another_one_stays() -> None:
    before = Path("/proc/self/autogroup").read_text()
    assert lowered(own_session=True)[1] == "7"
    assert lowered(own_session=False)[1] == before.split()[-1]
    assert Path("/proc/self/autogroup").read_text() == before
