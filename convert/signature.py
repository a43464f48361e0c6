"""The tools that made a package, recorded where `ct.convert` records them: in the metadata and the build
info.

The one thing that `ct.convert` adds and that is left out is the date: the same shard gives the same bytes.
"""

from typing import Any

from anespec import __version__
from anespec.convert.graph.builder import ct
from anespec.gguf.element_types import ElementType

SOURCE = "milinternal"
"""What `ct.convert` calls a program that was built with coremltools' own builder."""

_COREMLTOOLS = "com.github.apple.coremltools."
_ANESPEC = "anespec.version"


def sign(model: Any) -> None:
    """Say in the protobuf `model` of an ML program what made it."""
    metadata = model.description.metadata.userDefined
    metadata[f"{_COREMLTOOLS}source"] = SOURCE
    metadata[f"{_COREMLTOOLS}version"] = ct.__version__
    metadata[_ANESPEC] = __version__
    info = model.mlProgram.attributes["buildInfo"]
    strings = info.type.dictionaryType
    strings.keyType.tensorType.dataType = strings.valueType.tensorType.dataType = ElementType.STRING.mil
    for name, value in (("version", ct.__version__), (f"component-{SOURCE}", "")):
        entry = info.immediateValue.dictionary.values.add()
        _write(entry.key, f"coremltools-{name}")
        _write(entry.value, value)


def _write(value: Any, text: str) -> None:
    value.type.tensorType.dataType = ElementType.STRING.mil
    value.immediateValue.tensor.strings.values.append(text)
