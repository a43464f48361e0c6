"""What this machine says of its memory."""

import subprocess
import sys

import numpy as np
import pytest

from anespec.system import machine
from anespec.system.machine import (
    free_memory,
    machine_memory,
    machine_name,
    own_peak_memory,
    peak_memory,
    processors,
    system_build,
)


def test_the_figures_fit_each_other() -> None:
    assert processors() >= 1
    assert 0 < own_peak_memory() <= peak_memory() < machine_memory()
    assert 0 < free_memory() <= machine_memory()


@pytest.mark.slow
def test_a_peak_stays_after_memory_is_given_back() -> None:
    before = peak_memory()
    held = np.ones(peak_memory() // 8 + 10_000_000)
    assert peak_memory() >= held.nbytes
    del held
    assert peak_memory() > before


@pytest.mark.slow
def test_the_peak_is_this_programs_and_not_that_of_what_started_it() -> None:
    """A child begins as a copy of its parent, whose peak some counts of a system keep."""
    held = np.ones(30_000_000)
    told = subprocess.run(
        [sys.executable, "-c", "from anespec.system.machine import peak_memory; print(peak_memory())"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert int(told.stdout) < held.nbytes


def test_a_mac_is_named_by_its_chip_and_its_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python says `arm` of every chip, and verdicts hold for one chip and one build alone."""
    told = {"machdep.cpu.brand_string": "Apple M4 Max\n", "kern.osversion": "24F74\n"}

    def sysctl(command: list[str], **options: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess(command, 0, stdout=told[command[-1]])

    class Mac:
        system = staticmethod(lambda: "Darwin")
        machine = staticmethod(lambda: "arm64")
        processor = staticmethod(lambda: "arm")
        mac_ver = staticmethod(lambda: ("15.5", ("", "", ""), "arm64"))

    machine._asked.cache_clear()
    monkeypatch.setattr(machine, "platform", Mac)
    monkeypatch.setattr("anespec.system.machine.subprocess.run", sysctl)
    assert machine_name() == "Darwin arm64 Apple M4 Max"
    assert system_build() == "macOS 15.5 (24F74)"
    machine._asked.cache_clear()
    told |= {"machdep.cpu.brand_string": "", "kern.osversion": ""}
    assert machine_name() == "Darwin arm64 arm"
    assert "unknown build" in system_build()
    machine._asked.cache_clear()


def test_elsewhere_the_system_is_its_name() -> None:
    if sys.platform == "linux":
        assert system_build() == "Linux"
