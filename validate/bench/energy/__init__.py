"""Read the energy that this machine uses, where its platform shows it.

Linux shows the counters of the processor (RAPL); macOS has a program that samples its chip (powermetrics).
"""

import platform
from typing import Protocol

from anespec.system.errors import AnespecError


class NoEnergyError(AnespecError):
    """Energy cannot be read here; the message says why, and what would change that."""


class EnergyMeter(Protocol):
    """A meter adds up the energy that the machine uses, that of other programs included."""

    @property
    def name(self) -> str:
        """What is measured, and by what."""
        ...

    def joules(self) -> float:
        """Return the energy since the meter was opened; raise NoEnergyError if the meter has ended."""
        ...

    def close(self) -> None:
        """Stop measuring; a second call does nothing."""
        ...


def open_meter(asks: bool = False) -> EnergyMeter:
    """Open the meter of this platform; if it `asks`, the system may ask for a password on the terminal.

    Raises:
        NoEnergyError: there is none, or this user may not read it.
    """
    match platform.system():
        case "Darwin":
            from anespec.validate.bench.energy.powermetrics import open_powermetrics

            return open_powermetrics(asks=asks)
        case "Linux":
            from anespec.validate.bench.energy.rapl import RaplMeter

            return RaplMeter()
        case system:
            raise NoEnergyError(
                f"the energy per token is not measured on {system}; it is on Linux and on a Mac, which have "
                "meters"
            )
