"""What a lowering sees of one operation: its values in a library's terms, and its constants."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from anespec.manifests.errors import ArtifactError
from anespec.runtime.backends.portable.packed import Packed
from anespec.runtime.backends.portable.program import Constant, Operation

ValueT = TypeVar("ValueT")


@dataclass(frozen=True)
class Arguments(Generic[ValueT]):
    """Inputs of `operation`: tensors from `known`, parameters from the program's constants.

    Accessors raise ArtifactError where the operation lacks what is asked for.
    """

    operation: Operation
    known: Mapping[str, ValueT]
    constants: Mapping[str, Constant]
    source: str

    def has(self, key: str) -> bool:
        """Whether the operation has this input."""
        return key in self.operation.inputs

    def values(self, key: str) -> list[ValueT]:
        """All tensors of an input that takes several."""
        return [self.known[name] for name in self._names(key)]

    def value(self, key: str) -> ValueT:
        """The tensor of an input."""
        return self.known[self._names(key)[0]]

    def state(self, key: str = "input") -> str:
        """The name of the state that an input refers to."""
        return self._names(key)[0]

    def stored(self, key: str) -> NDArray[Any] | Packed:
        """A constant array as it is stored."""
        value = self._constant(key)
        if isinstance(value, str):
            raise ArtifactError(f"{self.source}: input {key!r} of {self.operation.name} is a string")
        return value

    def array(self, key: str) -> NDArray[Any]:
        """A constant array."""
        value = self.stored(key)
        return value.unpacked() if isinstance(value, Packed) else value

    def integers(self, key: str) -> list[int]:
        """A constant list of integers."""
        return [int(i) for i in np.atleast_1d(self.array(key))]

    def integer(self, key: str) -> int:
        """A constant integer."""
        return self.integers(key)[0]

    def flag(self, key: str, default: bool) -> bool:
        """A constant boolean."""
        return bool(self.array(key)) if self.has(key) else default

    def number(self, key: str, default: float) -> float:
        """A constant number."""
        return float(self.array(key)) if self.has(key) else default

    def gelu_approximation(self) -> str:
        """How gelu is to be computed: `tanh` or `none`, as torch names it."""
        mode = self._constant("mode") if self.has("mode") else "EXACT"
        known = {"EXACT": "none", "TANH_APPROXIMATION": "tanh"}
        if not isinstance(mode, str) or mode not in known:
            raise ArtifactError(f"{self.source}: {self.operation.name} is a gelu of an unknown mode {mode!r}")
        return known[mode]

    def require_pointwise_conv(self) -> None:
        """Raise ArtifactError unless this is a 1x1 convolution, stride 1, no padding, one group."""
        weight_free = (
            set(self.integers("strides")) == {1}
            and set(self.integers("dilations")) == {1}
            and self.integer("groups") == 1
            and not any(self.integers("pad"))
        )
        if not weight_free:
            raise ArtifactError(f"{self.source}: {self.operation.name} is a convolution other than 1x1")

    def require_channel_palettes(self) -> None:
        """Raise ArtifactError unless the palettes hold single numbers and are shared by output channels."""
        palettes, indices = self.array("lut").shape, self.stored("indices").shape
        grouped = palettes[0] > 0 and indices[0] % palettes[0] == 0 and set(palettes[1:-2]) == {1}
        if len(palettes) != len(indices) + 2 or not grouped or palettes[-1] != 1:
            raise ArtifactError(f"{self.source}: {self.operation.name} has palettes of an unsupported shape")

    def _names(self, key: str) -> tuple[str, ...]:
        try:
            return self.operation.inputs[key]
        except KeyError:
            raise ArtifactError(
                f"{self.source}: {self.operation.kind} {self.operation.name} lacks its input {key!r}"
            ) from None

    def _constant(self, key: str) -> Constant:
        try:
            return self.constants[self._names(key)[0]]
        except KeyError:
            raise ArtifactError(
                f"{self.source}: input {key!r} of {self.operation.name} is not a constant"
            ) from None


def unknown_operation(operation: Operation, source: str, library: str) -> ArtifactError:
    """The error for an operation that a library's table lacks."""
    return ArtifactError(
        f"{source}: the operation {operation.kind} ({operation.name}) has no {library} equivalent; "
        "use another --backend"
    )
