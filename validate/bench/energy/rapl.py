"""Read the energy counters of processors on Linux (RAPL, /sys/class/powercap)."""

import re
from dataclasses import dataclass
from pathlib import Path

from anespec.validate.bench.energy import NoEnergyError

ROOT = Path("/sys/class/powercap")

_ZONE = re.compile(r"intel-rapl:\d+")
"""The folder of a whole package, on AMD's processors too. Its parts (intel-rapl:0:1) are in its own count."""


@dataclass
class _Counter:
    """The counter of one package in microjoules; it begins again at 0 after `limit`."""

    path: Path
    limit: int
    last: int
    total: int = 0

    def advance(self) -> int:
        """Return what was used since the counter was opened; it must not have passed `limit` twice between
        two calls, which takes at least some minutes."""
        now = int(self.path.read_text())
        self.total += now - self.last + (self.limit if now < self.last else 0)
        self.last = now
        return self.total


class RaplMeter:
    """A meter of all packages of processors together."""

    def __init__(self, root: Path = ROOT) -> None:
        """Begin to count; `root` is the folder of the kernel's power zones.

        Raises:
            NoEnergyError: there are no counters, or only root may read them.
        """
        try:
            self._counters = [
                _opened(zone) for zone in sorted(root.glob("intel-rapl:*")) if _is_package(zone)
            ]
        except PermissionError as error:
            raise NoEnergyError(
                f"{error.filename} may be read by root alone, so the energy per token was not measured; "
                f"`sudo chmod a+r {root}/intel-rapl:*/energy_uj` lets you read it until the next start"
            ) from None
        except (OSError, ValueError) as error:
            raise NoEnergyError(
                f"the counters in {root} cannot be read ({error}), so the energy per token was not measured; "
                "`sudo modprobe intel_rapl_msr` loads them anew"
            ) from None
        if not self._counters:
            raise NoEnergyError(
                f"there are no energy counters in {root}, as in a virtual machine or container, so the "
                "energy per token was not measured; run on the machine itself, after "
                "`sudo modprobe intel_rapl_msr`"
            )
        self.name = "RAPL: the packages of the processors, without memory"

    def joules(self) -> float:
        """Return the energy since the meter was opened."""
        return sum(counter.advance() for counter in self._counters) / 1e6

    def close(self) -> None:
        """Do nothing: no file is open between two readings."""


def _is_package(zone: Path) -> bool:
    """Return whether a zone is a package; the zone `psys` counts the packages once more."""
    return bool(_ZONE.fullmatch(zone.name)) and (zone / "name").read_text().startswith("package")


def _opened(zone: Path) -> _Counter:
    path = zone / "energy_uj"
    return _Counter(path, int((zone / "max_energy_range_uj").read_text()), int(path.read_text()))
