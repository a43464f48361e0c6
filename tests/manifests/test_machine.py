"""What this machine says of its memory."""

import subprocess
import sys

import numpy as np

from anespec.manifests.machine import (
    free_memory,
    machine_memory,
    own_peak_memory,
    peak_memory,
    processors,
)


def test_the_figures_fit_each_other() -> None:
    assert processors() >= 1
    assert 0 < own_peak_memory() <= peak_memory() < machine_memory()
    assert 0 < free_memory() <= machine_memory()


def test_a_peak_stays_after_memory_is_given_back() -> None:
    before = peak_memory()
    held = np.ones(peak_memory() // 8 + 10_000_000)
    assert peak_memory() >= held.nbytes
    del held
    assert peak_memory() > before


def test_the_peak_is_this_programs_and_not_that_of_what_started_it() -> None:
    """A child begins as a copy of its parent, whose peak some counts of a system keep."""
    held = np.ones(30_000_000)
    told = subprocess.run(
        [sys.executable, "-c", "from anespec.manifests.machine import peak_memory; print(peak_memory())"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert int(told.stdout) < held.nbytes
