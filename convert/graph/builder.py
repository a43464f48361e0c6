"""coremltools, imported with its expected Linux warnings silenced."""

import logging
import warnings

_LOGGER = logging.getLogger("coremltools")
_LEVEL = _LOGGER.level
_LOGGER.setLevel(logging.CRITICAL)  # libcoremlpython is absent outside macOS; only the import is hushed
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import coremltools as ct
    from coremltools.converters.mil.mil import Builder as mb  # noqa: N813
    from coremltools.converters.mil.mil import Function, Program, Var, types
_LOGGER.setLevel(_LEVEL)

__all__ = ["Function", "Program", "Var", "ct", "mb", "types"]
