"""Choose the device of a self-test: Core ML if there is a Neural Engine, else the portable backend.

On a Mac without one, such as a virtual machine, --core-ml chooses Core ML nevertheless.
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
    """A device by the name from which a process makes it, and whether it has a Neural Engine."""

    name: str
    engine: bool


def device_here(core_ml: bool = False) -> DeviceChoice:
    """Return the device of this machine; `core_ml` chooses Core ML even without a Neural Engine.

    Raises:
        MissingPackageError: `core_ml` is set, and Core ML is not available.
    """
    reason = unavailable()
    if core_ml and reason is not None:
        raise MissingPackageError(f"--core-ml cannot run here: {reason.partition(';')[0]}")
    engine = reason is None and has_neural_engine()
    return DeviceChoice(COREML if engine or core_ml else PORTABLE, engine)


def make_device(name: str) -> Device:
    """Return a device from its name `module:Class`."""
    module, _, made = name.partition(":")
    device: Device = getattr(importlib.import_module(module), made)()
    return device


def name_of(device: Device) -> str:
    """Return the name from which `make_device` makes such a device."""
    return f"{type(device).__module__}:{type(device).__name__}"
