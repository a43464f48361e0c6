"""Which device a self-test is run on: Core ML where there is a Neural Engine, else the portable backend.

A Mac without one, such as a virtual machine, can be told to ask Core ML all the same.
"""

import importlib
from dataclasses import dataclass

from anespec.runtime.backends.coreml.library import has_neural_engine, unavailable
from anespec.system.errors import MissingPackageError
from anespec.validate.selftest.devices.device import Device

COREML = "anespec.validate.selftest.devices.coreml:CoreMLDevice"
PORTABLE = "anespec.validate.selftest.devices.portable:PortableDevice"


@dataclass(frozen=True)
class DeviceChoice:
    """A device by the name that a process makes it from, and whether it has a Neural Engine."""

    name: str
    engine: bool


def device_here(core_ml: bool = False) -> DeviceChoice:
    """The device of this machine; with `core_ml` it is Core ML, also where there is no Neural Engine.

    Raises:
        MissingPackageError: Core ML is asked for, and is not here.
    """
    reason = unavailable()
    if core_ml and reason is not None:
        raise MissingPackageError(f"--core-ml needs what is not here: {reason.partition(';')[0]}")
    engine = reason is None and has_neural_engine()
    return DeviceChoice(COREML if engine or core_ml else PORTABLE, engine)


def make_device(name: str) -> Device:
    """The device that `module:Class` names."""
    module, _, made = name.partition(":")
    device: Device = getattr(importlib.import_module(module), made)()
    return device


def name_of(device: Device) -> str:
    """What `make_device` makes such a device from."""
    return f"{type(device).__module__}:{type(device).__name__}"
