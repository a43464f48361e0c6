"""Read the arguments of one operation: its tensors in a library's own type, and its constants."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.backends.portable.mil_package import Packed, unpacked
from anespec.system.errors import ArtifactError
from anespec.system.formatting import printable

if TYPE_CHECKING:
    from anespec.runtime.backends.portable.program import Constant, Operation

ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class Arguments(Generic[ValueT]):
    """The inputs of `operation`: tensors from `known`, parameters from the program's constants.

    The accessors raise ArtifactError if the operation lacks the input, or it has another type. `read` caches
    lists of integers by input, since an operation runs in every pass.
    """

    operation: Operation
    known: Mapping[str, ValueT]
    constants: Mapping[str, Constant]
    source: str
    read: dict[str, list[int]] = field(default_factory=dict)

    def has(self, key: str) -> bool:
        """Return whether the operation has this input."""
        return key in self.operation.inputs

    def is_constant(self, key: str) -> bool:
        """Return whether an input is a constant of the program."""
        return self._name(key) in self.constants

    def values(self, key: str) -> list[ValueT]:
        """Return all tensors of an input that takes several."""
        return [self._known(name) for name in self._names(key)]

    def value(self, key: str) -> ValueT:
        """Return the tensor of an input."""
        return self._known(self._name(key))

    def state(self, key: str = "input") -> str:
        """Return the name of the state to which an input refers."""
        return self._name(key)

    def stored(self, key: str) -> NDArray[Any] | Packed:
        """Return a constant array as it is stored, possibly packed."""
        value = self._constant(key)
        if isinstance(value, str):
            raise self.refused(f"has a string for its input {key!r}")
        return value

    def array(self, key: str) -> NDArray[Any]:
        """Return a constant array, unpacked."""
        return unpacked(self.stored(key))

    def integers(self, key: str) -> list[int]:
        """Return a constant list of integers below 2^31; the caller must not change it."""
        if key in self.read:
            return self.read[key]
        values = self._of_kinds("iu", key, "integers")
        if values.ndim > 1 or (np.abs(values.astype(np.float64)) >= 2.0**31).any():
            raise self.refused(f"has no list of integers in range for its input {key!r}")
        self.read[key] = [int(i) for i in np.atleast_1d(values)]
        return self.read[key]

    def integer(self, key: str) -> int:
        """Return a constant integer."""
        return int(self._single(key, self.integers(key), "integer"))

    def flag(self, key: str, default: bool) -> bool:
        """Return a constant boolean, `default` if the operation lacks the input."""
        if not self.has(key):
            return default
        return bool(self._single(key, self._of_kinds("b", key, "boolean").ravel(), "boolean"))

    def flags(self, key: str, count: int) -> list[bool]:
        """Return a constant list of `count` booleans, all false if the operation lacks the input."""
        if not self.has(key):
            return [False] * count
        values = self._of_kinds("b", key, "booleans").ravel()
        if len(values) != count:
            raise self.refused(f"has {len(values)} booleans for its input {key!r}, not {count}")
        return [bool(value) for value in values]

    def number(self, key: str, default: float) -> float:
        """Return a constant number, `default` if the operation lacks the input."""
        if not self.has(key):
            return default
        return float(self._single(key, self._of_kinds("f", key, "number").ravel(), "number"))

    def gelu_approximation(self) -> str:
        """Return the formula of gelu: `tanh` or `none`, as torch names it."""
        mode = self._constant("mode") if self.has("mode") else "EXACT"
        known = {"EXACT": "none", "TANH_APPROXIMATION": "tanh"}
        if not isinstance(mode, str) or mode not in known:
            raise self.refused(f"has an unknown mode {mode!r}")
        return known[mode]

    def require_cast_to_fp16(self) -> None:
        """Raise ArtifactError unless the operation casts to fp16."""
        if self._constant("dtype") != "fp16":
            raise self.refused("casts to another type than fp16")

    def require_pointwise_conv(self) -> None:
        """Raise ArtifactError unless the operation is a 1x1 convolution, stride 1, no padding, one group."""
        weight_free = (
            set(self.integers("strides")) == {1}
            and set(self.integers("dilations")) == {1}
            and self.integer("groups") == 1
            and not any(self.integers("pad"))
        )
        if not weight_free:
            raise self.refused("is a convolution other than 1x1")

    def require_channel_palettes(self) -> None:
        """Raise ArtifactError unless the palettes hold single numbers and are shared by output channels."""
        palettes, indices = self.array("lut").shape, self.stored("indices").shape
        if (
            len(palettes) < 3
            or len(palettes) != len(indices) + 2
            or palettes[0] < 1
            or indices[0] % palettes[0] != 0
            or {*palettes[1:-2], palettes[-1]} != {1}
        ):
            raise self.refused("has palettes of an unsupported shape")

    def looked_up(self) -> NDArray[Any]:
        """Return the matrix (out, in) of a 1x1 convolution's weight that is stored with palettes."""
        self.require_channel_palettes()
        indices, palettes = self.array("indices"), self.array("lut")
        groups = indices.reshape(len(palettes), -1)
        matrix = np.take_along_axis(palettes.reshape(len(palettes), -1), groups, axis=1)
        return matrix.reshape(indices.shape[:2])

    def refused(self, reason: str) -> ArtifactError:
        """Return the error to raise for an invalid operation; `reason` is the predicate of the sentence."""
        return ArtifactError(
            f"{self.source}: {printable(self.operation.kind)} {printable(self.operation.name)} {reason}; "
            "convert the model again"
        )

    def _names(self, key: str) -> tuple[str, ...]:
        names = self.operation.inputs.get(key)
        if not names:
            raise self.refused(f"lacks its input {key!r}")
        return names

    def _name(self, key: str) -> str:
        names = self._names(key)
        if len(names) > 1:
            raise self.refused(f"has several values for its input {key!r}")
        return names[0]

    def _known(self, name: str) -> ValueT:
        try:
            return self.known[name]
        except KeyError:
            raise self.refused(f"takes {name!r}, which has no value at that point") from None

    def _of_kinds(self, kinds: str, key: str, wanted: str) -> NDArray[Any]:
        values = self.array(key)
        if values.dtype.kind not in kinds:
            raise self.refused(f"has no {wanted} for its input {key!r}")
        return values

    def _single(self, key: str, values: Sequence[Any] | NDArray[Any], wanted: str) -> Any:
        if len(values) != 1:
            raise self.refused(f"does not have exactly one {wanted} for its input {key!r}")
        return values[0]

    def _constant(self, key: str) -> Constant:
        try:
            return self.constants[self._name(key)]
        except KeyError:
            raise self.refused(f"has an input {key!r} that is not a constant") from None


def unknown_operation(operation: Operation, source: str, library: str) -> ArtifactError:
    """Return the error to raise for an operation that a library's table lacks."""
    return ArtifactError(
        f"{source}: the operation {printable(operation.kind)} ({printable(operation.name)}) "
        f"has no {library} equivalent; use another --backend"
    )


@contextlib.contextmanager
def refusing(source: str, library: str) -> Iterator[None]:
    """Convert an exception that a library raises for a program into an ArtifactError.

    This is the last resort: a program that passed `soundness` should cause none.
    """
    try:
        yield
    except (RuntimeError, TypeError, ValueError, OverflowError, MemoryError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[-1].rstrip(".") if lines else type(error).__name__
        raise ArtifactError(
            f"{source}: {library} cannot run it ({reason}); convert the model again or use another --backend"
        ) from error


# The bounds of slice_by_index are constants; those of slice_update may also be computed in the pass.


def slices_of(
    a: Arguments[ValueT], shape: tuple[int, ...], bounds: tuple[Sequence[int], Sequence[int]] | None = None
) -> tuple[slice, ...]:
    """Return the slices of a value of `shape` that the operation reads or replaces, with explicit bounds.

    `bounds` are the begins and the ends by axis, if they are not constants.

    Raises:
        ArtifactError: a slice is empty, exceeds the shape, has another stride than 1, or drops an axis.
    """
    rank = len(shape)
    begins, ends = bounds or (a.integers("begin"), a.integers("end"))
    strides = a.integers("stride") if a.has("stride") else [1] * rank
    from_start, to_end, dropped = (a.flags(f"{name}_mask", rank) for name in ("begin", "end", "squeeze"))
    if not len(begins) == len(ends) == rank or strides != [1] * rank or any(dropped):
        raise a.refused(f"slices {shape} in an unsupported way")
    found = []
    for axis, size in enumerate(shape):
        begin = 0 if from_start[axis] else begins[axis] + (size if begins[axis] < 0 else 0)
        end = size if to_end[axis] else ends[axis] + (size if ends[axis] < 0 else 0)
        if not 0 <= begin < end <= size:
            raise a.refused(f"slices {begins[axis]} to {ends[axis]} of axis {axis} of {shape}")
        found.append(slice(begin, end))
    return tuple(found)
