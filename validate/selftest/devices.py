"""Which device a self-test is run on: Core ML where there is a Neural Engine, else the portable backend."""

from dataclasses import dataclass

from anespec.runtime.backends.coreml.library import has_neural_engine, unavailable

COREML = "anespec.validate.selftest.coreml_device:CoreMLDevice"
PORTABLE = "anespec.validate.selftest.portable_device:PortableDevice"


@dataclass(frozen=True)
class DeviceChoice:
    """A device by the name that a process makes it from, and whether it has a Neural Engine."""

    name: str
    engine: bool


def device_here() -> DeviceChoice:
    """The device of this machine."""
    if has_neural_engine() and unavailable() is None:
        return DeviceChoice(COREML, engine=True)
    return DeviceChoice(PORTABLE, engine=False)
