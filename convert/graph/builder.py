"""Import coremltools without its warnings on Linux, and without losing a ^C."""

import logging
import warnings
from typing import Any

from anespec.system.interrupts import interrupts_held_back

_LOGGER = logging.getLogger("coremltools")
_LEVEL = _LOGGER.level
_LOGGER.setLevel(logging.CRITICAL)  # during the import only: libcoremlpython is missing outside macOS
with interrupts_held_back(), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import coremltools as ct
    from coremltools.converters.mil.backend.mil.helper import (
        create_file_value_tensor,
        types_to_proto_primitive,
    )
    from coremltools.converters.mil.backend.mil.load import CoreMLProtoExporter, MILProtoExporter
    from coremltools.converters.mil.mil import Builder as mb  # noqa: N813
    from coremltools.converters.mil.mil import Function, Program, Var, types
_LOGGER.setLevel(_LEVEL)


def file_value(var: Var, offset: int, path: str) -> Any:
    """Return the protobuf value of a constant at `offset` in the weight file `path`."""
    kind = types_to_proto_primitive(var.sym_type.get_primitive())
    return create_file_value_tensor(path, offset, var.val.shape, kind)


__all__ = [
    "CoreMLProtoExporter",
    "Function",
    "MILProtoExporter",
    "Program",
    "Var",
    "ct",
    "file_value",
    "mb",
    "types",
]
