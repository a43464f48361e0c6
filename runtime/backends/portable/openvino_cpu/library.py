"""Import OpenVINO without its telemetry; the other modules of this folder import its names from here.

A plain `import openvino` counts the use in ~/intel, and forks a process that reports it to Google Analytics;
the interpreter waits for that process when it exits. If the package `openvino_telemetry` is missing, OpenVINO
uses a stub instead, so the package is hidden during the import. A program that imported OpenVINO before has
chosen itself.
"""

import contextlib
import ctypes
import mmap
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import prod
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
from anespec.runtime.backends.portable.mil_package import Packed, unpacked
from anespec.system.errors import ArtifactError

# Weights are kept in memory only once. A library that rearranges weights at the first product can read them
# from the mapped file: they need not be copied before, and the pages of the file are not needed afterwards.
# Linux counts these pages as the process's memory until they are released. To release them is free: a page
# that is read again is mapped again.

ALIGNMENT = 64
"""Bytes of the widest register; a library may be unable to read constants with another alignment."""

SECONDS_BETWEEN_RELEASES = 0.02
"""Seconds between two releases; at the speed of memory some 100 MB are read in this time."""


def is_shareable(values: NDArray[Any]) -> bool:
    """Return whether a library that gets the address of an array can read its bytes in place."""
    return bool(values.flags.c_contiguous and values.nbytes and values.ctypes.data % ALIGNMENT == 0)


def shared_view(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array over the same bytes that is marked as writable, for a library that takes no other.

    It does not keep `values` alive. To write to it ends the process if the bytes are a file mapped for
    reading.
    """
    memory = (ctypes.c_uint8 * values.nbytes).from_address(values.ctypes.data)
    return np.ctypeslib.as_array(memory).view(values.dtype).reshape(values.shape)


class MappedWeights:
    """The weight files in which constants are mapped."""

    def __init__(self, constants: Iterable[NDArray[Any] | Packed | str]) -> None:
        """Find the mapped files of `constants`."""
        found = (_mapping(value) for value in constants)
        self._files = {id(file): file for file in found if file is not None}

    def release(self) -> None:
        """Release the memory of all pages that were read, if the system can."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for file in self._files.values():
                file.madvise(mmap.MADV_DONTNEED)

    def require_whole(self, source: str) -> None:
        """Raise ArtifactError about `source` if a weight file was truncated.

        Call it before each pass: a library may still read a weight, for example at a new width, and to read
        beyond the end of a mapped file ends the process (SIGBUS).
        """
        if any(file.size() < len(file) for file in self._files.values()):
            raise ArtifactError(
                f"{source}: its weights were truncated while they were in use; convert the model again"
            )

    @contextmanager
    def released_meanwhile(self) -> Iterator[None]:
        """Release pages repeatedly during the block, which reads all weights, to limit its memory."""
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
    """Return the mapping of the file that holds a constant; None if it is not mapped."""
    below: object = value.data if isinstance(value, Packed) else value
    while isinstance(below, np.ndarray):
        below = below.base
    return below if isinstance(below, mmap.mmap) else None


REPORTER = "openvino_telemetry"


@contextlib.contextmanager
def _absent(package: str) -> Iterator[None]:
    """Make the import of a package fail in this block, unless it has been imported before."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment]  # the import system's mark for a missing package
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
        opset17,
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
    "opset17",
]


@cache
def core() -> Core:
    """Return the process's only Core, which must outlive all models: freeing it unloads the CPU plugin."""
    return Core()


# Channel tensors are kept in the layout that OpenVINO's CPU kernels prefer.
#
# In the graph's channel tensors the T rows are innermost. With T = 4, elementwise kernels would process four
# numbers at a time, and every projection would need transposes. So such a value is kept as rows [1, T, C]
# from one projection to the next, and transposed back only if an operation needs the graph's own layout.


@dataclass(frozen=True)
class Rows:
    """A channel tensor laid out as rows [1, T, C]; `layout` is its layout in the program."""

    output: Output
    layout: ChannelLayout


Value: TypeAlias = Output | Rows


def constant(values: Any, kind: type | None = None) -> Output:
    """Return a constant; fp16 becomes f32, the type of all values of the table."""
    array = np.asarray(unpacked(values), dtype=kind)
    return opset15.constant(array.astype(np.float32) if array.dtype == np.float16 else array).output(0)


class Values(dict[str, Value]):
    """The values that have nodes in a model, by name. A constant gets its node at the first access."""

    def __init__(self, constants: Mapping[str, NDArray[Any] | Packed | str]) -> None:
        self._constants = constants

    def __missing__(self, name: str) -> Value:
        return self.setdefault(name, constant(self._constants[name]))


PACKED_TYPES = {ElementType.INT4: Type.i4, ElementType.UINT4: Type.u4}
"""OpenVINO packs these as Core ML does, the first number in the low bits."""


def whole_numbers(values: NDArray[Any] | Packed, shape: Sequence[int]) -> Output:
    """Return an integer constant in the given shape; four-bit numbers stay packed.

    It is not copied if possible, so `values` must outlive every user of the constant.
    """
    if not isinstance(values, Packed):
        return _in_place(values.reshape(shape), shape, Type(values.dtype))
    kind = PACKED_TYPES.get(values.element)
    if kind is None:
        return opset15.constant(values.unpacked().reshape(shape)).output(0)
    return _in_place(values.data, shape, kind)


def joined(parts: Sequence[NDArray[Any] | Packed], shape: Sequence[int]) -> Output:
    """Return a constant with the numbers of all parts, one after the other, copied once.

    Parts are of one type and size; four-bit numbers stay packed if each part ends with a whole byte.
    """
    first, kind = parts[0], None
    if not isinstance(first, Packed):
        kind = Type(first.dtype)
    elif prod(first.shape) * first.element.bits % 8 == 0:
        kind = PACKED_TYPES.get(first.element)
    if kind is None:
        return joined([unpacked(part) for part in parts], shape)
    tensor = Tensor(kind, list(shape))
    places = np.split(tensor.data.reshape(-1).view(np.uint8), len(parts))
    for part, place in zip(parts, places, strict=True):
        stored = part.data if isinstance(part, Packed) else part
        place[:] = np.ascontiguousarray(stored).reshape(-1).view(np.uint8)
    return op.Constant(tensor, shared_memory=True).output(0)


def _in_place(stored: NDArray[Any], shape: Sequence[int], kind: Type) -> Output:
    """Return a constant over the stored bytes, copied only if OpenVINO cannot read them in place."""
    does_share = is_shareable(stored)
    tensor = Tensor(shared_view(stored) if does_share else np.ascontiguousarray(stored), list(shape), kind)
    return op.Constant(tensor, shared_memory=does_share).output(0)


def integers(values: Sequence[int]) -> Output:
    """Return an int64 constant of axes or sizes."""
    return constant(list(values), np.int64)


def out(node: Node) -> Output:
    """Return the only output of a node."""
    return node.output(0)


def planar(value: Value) -> Output:
    """Return the value in the graph's own layout."""
    if isinstance(value, Rows):
        channels = opset15.transpose(value.output, integers([0, 2, 1]))
        return out(opset15.unsqueeze(channels, integers([value.layout.single_axis])))
    return value


def rows(value: Value) -> Rows:
    """Return a channel tensor as rows; constants [1, C, 1, 1] are transposed when the model is built."""
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
    """Apply an elementwise operation. The result is in rows if an operand is in rows."""
    layout = next((operand.layout for operand in operands if isinstance(operand, Rows)), None)
    if layout is None:
        return out(make(*operands))
    aligned = [operand if _is_scalar(operand) else rows(operand).output for operand in operands]
    return Rows(out(make(*aligned)), layout)


def reduce(make: Callable[..., Node], x: Value, axes: Sequence[int], keep_dims: bool) -> Value:
    """Apply a reduction. A reduction of rows over their channels stays in rows."""
    if isinstance(x, Rows) and list(axes) == [CHANNELS_AXIS] and keep_dims:
        return Rows(out(make(x.output, integers([2]), True)), x.layout)
    return out(make(planar(x), integers(axes), keep_dims))


def _is_scalar(value: Value) -> bool:
    return isinstance(value, Output) and value.get_partial_shape().rank.get_length() == 0
