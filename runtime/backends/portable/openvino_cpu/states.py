"""Keep K/V states in OpenVINO's variables, which have as many slots as the span of a pass."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.backends.portable.openvino_cpu.library import InferRequest
from anespec.runtime.backends.portable.openvino_cpu.library import Tensor as SharedTensor
from anespec.runtime.backends.runner import Tensor


class States:
    """The states of one request.

    A variable holds a state's first slots. The others are kept in fp16 arrays, whose pages take no memory
    until they are written. Values are rounded to fp16 when they are written, so to move them changes none.
    """

    def __init__(self, request: InferRequest, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Make states of zeros; their variables have no slots until `stretch`."""
        self._variables: dict[str, Any] = {state.name: state for state in request.query_state()}
        self._beyond = {name: np.zeros(shape, np.float16) for name, shape in shapes.items()}
        self._spans = dict.fromkeys(shapes, 0)
        self._ends = dict.fromkeys(shapes, 0)
        """By state, the end of the slots ever written outside its variable; later ones are zeros."""

    def stretch(self, name: str, span: int) -> None:
        """Make a state's variable hold its first `span` slots; costs a copy if it held another number."""
        before = self._spans[name]
        if before == span:
            return
        beyond = self._beyond[name]
        held = np.zeros((*beyond.shape[:2], span, beyond.shape[3]), np.float32)
        kept = min(before, span)
        if before:
            values = self._held(name)
            held[:, :, :kept] = values[:, :, :kept]
            beyond[:, :, kept:before] = to_fp16(values[:, :, kept:])
            self._ends[name] = max(self._ends[name], before)
        end = min(span, self._ends[name])
        held[:, :, kept:end] = beyond[:, :, kept:end]
        self._variables[name].state = SharedTensor(held)
        self._spans[name] = span

    def read(self, name: str, first: int, count: int) -> Tensor:
        """Return a copy of `count` slots from `first` on, fp16."""
        inside = max(0, min(self._spans[name], first + count) - first)
        found = self._beyond[name][:, :, first : first + count].copy()
        if inside:
            found[:, :, :inside] = to_fp16(self._held(name)[:, :, first : first + inside])
        return found

    def write(self, name: str, first: int, value: Tensor) -> None:
        """Replace slots from `first` on.

        OpenVINO returns a view of the variable's memory, so writing to it is enough. If it ever returns a
        copy, the whole variable is written back.
        """
        end = first + value.shape[2]
        inside = max(0, min(self._spans[name], end) - first)
        if inside < value.shape[2]:
            self._beyond[name][:, :, first + inside : end] = value[:, :, inside:]
            self._ends[name] = max(self._ends[name], end)
        if inside:
            held = self._held(name)
            held[:, :, first : first + inside] = value[:, :, :inside]
            if not np.shares_memory(held, self._held(name)):
                self._variables[name].state = SharedTensor(held)

    def slots(self, name: str) -> int:
        """Return the number of slots of a state."""
        return self._beyond[name].shape[2]

    def _held(self, name: str) -> NDArray[np.float32]:
        held: NDArray[np.float32] = self._variables[name].state.data
        return held


def to_fp16(values: NDArray[np.float32]) -> Tensor:
    """Return a copy in fp16. Values beyond its range become infinite; the gates and the sampler find them."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16)
