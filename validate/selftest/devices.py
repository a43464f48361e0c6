"""Which device a self-test is run on: Core ML where there is a Neural Engine, else the portable backend."""

import importlib
from dataclasses import dataclass

from anespec.runtime.backends.coreml.library import has_neural_engine, unavailable
from anespec.validate.selftest.device import Device

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


def make_device(name: str) -> Device:
    """The device that `module:Class` names."""
    module, _, made = name.partition(":")
    device: Device = getattr(importlib.import_module(module), made)()
    return device


def name_of(device: Device) -> str:
    """What `make_device` makes such a device from."""
    return f"{type(device).__module__}:{type(device).__name__}"
