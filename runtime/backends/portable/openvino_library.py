"""Import OpenVINO without its telemetry; the modules next to this one import its names from here.

`import openvino` alone counts the use in ~/intel, and forks a process that reports it to Google Analytics
and that the interpreter waits for at its end. Where the package `openvino_telemetry` is absent, OpenVINO
puts a stub of its own in its place, so it is absent while OpenVINO is imported. A program that has imported
OpenVINO before has made that choice itself.
"""

import contextlib
import sys
from collections.abc import Iterator

REPORTER = "openvino_telemetry"


@contextlib.contextmanager
def _absent(package: str) -> Iterator[None]:
    """Let imports of a package fail that is not yet imported."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]  # how the import system is told: absent
    try:
        yield
    finally:
        del sys.modules[package]


with _absent(REPORTER):
    from openvino import (
        Core,
        InferRequest,
        Model,
        Node,
        Output,
        PartialShape,
        Tensor,
        Type,
        op,
        opset15,
    )

__all__ = [
    "Core",
    "InferRequest",
    "Model",
    "Node",
    "Output",
    "PartialShape",
    "Tensor",
    "Type",
    "op",
    "opset15",
]
