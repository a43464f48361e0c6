"""Which device a self-test is run on: Core ML where there is a Neural Engine, else the portable backend."""

from dataclasses import dataclass

PORTABLE = "anespec.validate.selftest.portable_device:PortableDevice"


@dataclass(frozen=True)
class DeviceChoice:
    """A device by the name that a process makes it from, and whether it has a Neural Engine."""

    name: str
    engine: bool


def device_here() -> DeviceChoice:
    """The device of this machine."""
    return DeviceChoice(PORTABLE, engine=False)
