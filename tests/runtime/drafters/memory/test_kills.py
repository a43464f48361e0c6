"""Killed at any moment, also several processes at once: no request that ended is lost, or learnt twice."""

import subprocess
import sys
from pathlib import Path

import pytest
import toy_memory
from patience import PATIENCE

PROGRAM = Path(toy_memory.__file__).with_name("killed_memory.py")


def outcome(*arguments: object) -> str:
    command = [sys.executable, PROGRAM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout


@pytest.mark.parametrize(("kills", "processes"), [pytest.param(60, 1, marks=pytest.mark.slow), (15, 3)])
def test_a_memory_outlives_kills(kills: int, processes: int) -> None:
    found = outcome(1, kills, processes)
    assert found.endswith(" requests were told\n") and found.count("\n") == 1, found
    assert int(found.split()[0]) > kills


@pytest.mark.slow
def test_the_check_can_fail() -> None:
    assert "are known" in outcome(1, 200, 1, "planted")
