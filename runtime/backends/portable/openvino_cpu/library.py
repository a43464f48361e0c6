"""Import OpenVINO without its telemetry; the modules next to this one import its names from here.

`import openvino` alone counts the use in ~/intel, and forks a process that reports it to Google Analytics
and that the interpreter waits for at its end. Where the package `openvino_telemetry` is absent, OpenVINO
puts a stub of its own in its place, so it is absent while OpenVINO is imported. A program that has imported
OpenVINO before has made that choice itself.
"""

import contextlib
import ctypes
import mmap
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from anespec.gguf.element_types import ElementType
from anespec.manifests.channel_layout import (
    CHANNELS_AXIS,
    DECLARED,
    ChannelLayout,
    layout_of,
    to_rows,
)
from anespec.runtime.backends.portable.mil_package import Packed
from anespec.system.errors import ArtifactError

# Keep weights in memory once.
#
# A library that rearranges weights when it first multiplies with them can read them where their file is
# mapped: nothing is copied for it before, and no page of the file is needed after. Linux counts such pages as
# the process's memory until they are released. Releasing them is free: a page that is read again is mapped
# again.

ALIGNMENT = 64
"""Bytes of the widest register; a library may read no constant that begins elsewhere."""

SECONDS_BETWEEN_RELEASES = 0.02
"""At the speed of memory a hundred megabytes are read in it."""


def is_shareable(values: NDArray[Any]) -> bool:
    """Return whether a library that gets the address of an array can read its bytes in place."""
    return bool(values.flags.c_contiguous and values.nbytes and values.ctypes.data % ALIGNMENT == 0)


def shared_view(values: NDArray[Any]) -> NDArray[Any]:
    """The same bytes as an array that calls itself writable, for a library that takes no other.

    It does not keep `values` alive. A write to a file that is mapped for reading ends the process.
    """
    memory = (ctypes.c_uint8 * values.nbytes).from_address(values.ctypes.data)
    return np.ctypeslib.as_array(memory).view(values.dtype).reshape(values.shape)


class MappedWeights:
    """The weight files that constants are mapped from."""

    def __init__(self, constants: Iterable[NDArray[Any] | Packed | str]) -> None:
        """Find the files; constants that are not mapped have none."""
        found = (_mapping(value) for value in constants)
        self._files = {id(file): file for file in found if file is not None}

    def release(self) -> None:
        """Give back the memory of all pages that were read; nothing where the system cannot."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for file in self._files.values():
                file.madvise(mmap.MADV_DONTNEED)

    def require_whole(self, source: str) -> None:
        """Raise ArtifactError, naming the `source`, where a file was cut short.

        To be asked before each pass: a library may still read a weight, as for a pass of a new width, and
        reading behind the end of a file that is mapped ends the process (SIGBUS).
        """
        if any(file.size() < len(file) for file in self._files.values()):
            raise ArtifactError(
                f"{source}: its weights were cut short while they were in use; convert the model again"
            )

    @contextmanager
    def released_meanwhile(self) -> Iterator[None]:
        """Release again and again while something reads all weights, so that it never holds them all."""
        done = threading.Event()

        def keep_releasing() -> None:
            while not done.wait(SECONDS_BETWEEN_RELEASES):
                self.release()

        thread = threading.Thread(target=keep_releasing, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            self.release()


def _mapping(value: NDArray[Any] | Packed | str) -> mmap.mmap | None:
    """The mapped file that a constant is a part of."""
    below: object = value.data if isinstance(value, Packed) else value
    while isinstance(below, np.ndarray):
        below = below.base
    return below if isinstance(below, mmap.mmap) else None


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


# Values in OpenVINO's terms, and the layout that its CPU kernels like.
#
# In the block graph's channel tensors the T rows are innermost. With T = 4, elementwise kernels would
# work four numbers at a time and every projection would be wrapped in transposes, so such a value is
# kept as rows [1, T, C] from one projection to the next and turned back only where an operation needs
# the graph's own layout.


@dataclass(frozen=True)
class Rows:
    """A channel tensor of the program, of this layout there, that is laid out as [1, T, C]."""

    output: Output
    layout: ChannelLayout


Value: TypeAlias = Output | Rows


def constant(values: Any, kind: type | None = None) -> Output:
    """A constant; fp16 becomes f32, the value type of the table."""
    array = np.asarray(values.unpacked() if isinstance(values, Packed) else values, dtype=kind)
    return opset15.constant(array.astype(np.float32) if array.dtype == np.float16 else array).output(0)


def whole_numbers(values: NDArray[Any] | Packed, shape: Sequence[int]) -> Output:
    """Return an integer constant in another shape; four-bit numbers stay packed.

    If possible it is not copied, so `values` must live as long as the object that uses the constant.
    """
    if not isinstance(values, Packed):
        return _in_place(values.reshape(shape), shape, Type(values.dtype))
    kind = {ElementType.INT4: Type.i4, ElementType.UINT4: Type.u4}.get(values.element)
    if kind is None:
        return opset15.constant(values.unpacked().reshape(shape)).output(0)
    # OpenVINO packs as Core ML does, the first number in the low bits.
    return _in_place(values.data, shape, kind)


def _in_place(stored: NDArray[Any], shape: Sequence[int], kind: Type) -> Output:
    """A constant of what is stored, copied only where it cannot be shared."""
    does_share = is_shareable(stored)
    tensor = Tensor(shared_view(stored) if does_share else np.ascontiguousarray(stored), list(shape), kind)
    return op.Constant(tensor, shared_memory=does_share).output(0)


def integers(values: Sequence[int]) -> Output:
    """An int64 constant of axes or sizes."""
    return constant(list(values), np.int64)


def out(node: Node) -> Output:
    """The only output of a node."""
    return node.output(0)


def planar(value: Value) -> Output:
    """The value in the graph's own layout."""
    if isinstance(value, Rows):
        channels = opset15.transpose(value.output, integers([0, 2, 1]))
        return out(opset15.unsqueeze(channels, integers([value.layout.single_axis])))
    return value


def rows(value: Value) -> Rows:
    """Return a channel tensor in rows; constants [1, C, 1, 1] are turned when the model is built."""
    if isinstance(value, Rows):
        return value
    layout = layout_of(shape_of(value)) or DECLARED
    node = value.get_node()
    if node.get_type_name() == "Constant":
        return Rows(constant(np.ascontiguousarray(to_rows(node.data)[None])), layout)
    channels = opset15.squeeze(value, integers([layout.single_axis]))
    return Rows(out(opset15.transpose(channels, integers([0, 2, 1]))), layout)


def shape_of(value: Output) -> tuple[int | None, ...]:
    """Return the shape of a value; a dimension that may vary is None."""
    sizes = value.get_partial_shape()
    return tuple(None if size.is_dynamic else size.get_length() for size in sizes)


def elementwise(make: Callable[..., Node], *operands: Value) -> Value:
    """Apply an elementwise operation: in rows if any operand is in rows, else unchanged."""
    layout = next((operand.layout for operand in operands if isinstance(operand, Rows)), None)
    if layout is None:
        return out(make(*operands))
    aligned = [operand if _is_scalar(operand) else rows(operand).output for operand in operands]
    return Rows(out(make(*aligned)), layout)


def reduce(make: Callable[..., Node], x: Value, axes: Sequence[int], keep_dims: bool) -> Value:
    """Apply a reduction; over the channels of rows it stays in rows."""
    if isinstance(x, Rows) and list(axes) == [CHANNELS_AXIS] and keep_dims:
        return Rows(out(make(x.output, integers([2]), True)), x.layout)
    return out(make(planar(x), integers(axes), keep_dims))


def _is_scalar(value: Value) -> bool:
    return isinstance(value, Output) and value.get_partial_shape().rank.get_length() == 0
