"""Things that a case must not do, for the watchdogs to find; in a module that a worker can import."""

import os
import time
from pathlib import Path

BAD = 20
WAITS = "ANESPEC_TEST_WAITS"
"""The variable that names the file which `waiting` makes when it waits."""


def bug(path: Path, number: int) -> bool:
    """Raises what is no AnespecError."""
    return bool([] if number != BAD else [][0])


def endless(path: Path, number: int) -> bool:
    """Never ends."""
    while number == BAD:
        pass
    return True


def swallowing(path: Path, number: int) -> bool:
    """Never ends, and takes every ordinary exception."""
    while number == BAD:
        try:
            sum(range(1000))
        except Exception:
            continue
    return True


def waiting(path: Path, number: int) -> bool:
    """Waits for what does not come, without using the processor."""
    if number == BAD:
        Path(os.environ[WAITS]).touch()
        time.sleep(1000)
    return True


def greedy(path: Path, number: int) -> bool:
    """Takes more memory than a file of that size can be worth."""
    return len(bytearray(100 << 20 if number == BAD else 1)) > 0


def bursting(path: Path, number: int) -> bool:
    """Asks for more memory than there may be."""
    return len(bytearray(1 << 40 if number == BAD else 1)) > 0


def crash(path: Path, number: int) -> bool:
    """Dies as a fault in a library does."""
    if number == BAD:
        os.abort()
    return True
