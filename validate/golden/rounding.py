"""Compute with rounded numbers: what a device with fp16 arithmetic may make of a formula in numpy.

The reference (reference.py) computes in fp32. Given rows of the class Rounded, the same code rounds every
operation's result to fp16, as the operations of a graph do. How far the results are from those in fp32 is how
far a correct shard may be from them, for this model and these rows (closeness.py).
"""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
P = ParamSpec("P")
R = TypeVar("R")

SMALLEST_NORMAL = np.float32(2.0**-14)
QUANTUM = np.float32(2.0**-24)
"""fp16's smallest normal number, and the distance between the numbers below it."""

DROPPED_BITS = 13
"""The bits of fp32's fraction that fp16 lacks."""

KEPT_BITS = np.uint32(0xFFFFFFFF << DROPPED_BITS & 0xFFFFFFFF)


class Rounding:
    """How results are rounded: to the nearest fp16, or, with a seed, up or down at random.

    Random rounding is unbiased: a number between two fp16 goes to the nearer one more often. Its errors are
    independent of those of the nearest ones, and 1.4 times as large. With `int8_group` the rows that enter a
    projection are first rounded to int8, with one scale for so many channels.
    """

    def __init__(self, seed: int | None = None, int8_group: int | None = None) -> None:
        """Begin the random numbers of the seed."""
        self._random = None if seed is None else np.random.default_rng(seed)
        self._int8_group = int8_group

    def on(self, values: Any) -> "Rounded":
        """Return the values as fp16 has them.

        Numbers beyond fp16's range keep their size, since a graph is scaled so that it has none.
        """
        found = np.array(values, np.float32)
        bits = found.view(np.uint32)
        if self._random is None:
            odd = (bits >> DROPPED_BITS) & 1
            more = np.uint32((1 << (DROPPED_BITS - 1)) - 1) + odd
            subnormal = np.rint(found / QUANTUM) * QUANTUM
        else:
            more = self._random.integers(1 << DROPPED_BITS, size=found.shape, dtype=np.uint32)
            subnormal = np.floor(found / QUANTUM + self._random.random(found.shape, np.float32)) * QUANTUM
        small = np.abs(found) < SMALLEST_NORMAL
        finite = np.isfinite(found)
        rounded = ((bits + more) & KEPT_BITS).view(np.float32)
        result = np.where(small, subnormal, np.where(finite, rounded, found)).view(Rounded)
        result.rounding = self
        return result

    def activations(self, rows: Floats) -> Floats:
        """Return what a projection of the rows [..., channels] multiplies by its weights."""
        if self._int8_group is None:
            return rows
        channels = rows.shape[-1]
        padded = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, -channels % self._int8_group)])
        groups = padded.reshape(*rows.shape[:-1], -1, self._int8_group)
        scale = np.abs(groups).max(axis=-1, keepdims=True) / 127
        scale = np.where(scale > 0, scale, 1)
        whole: Floats = (np.rint(groups / scale) * scale).reshape(padded.shape)[..., :channels]
        return whole


class Rounded(np.ndarray[Any, np.dtype[np.float32]]):
    """float32 numbers that are fp16's. Every operation on them rounds its result in the same way."""

    __array_priority__ = 1.0
    rounding: Rounding

    def __array_finalize__(self, origin: object) -> None:
        """Take over the rounding of the array that this is a view of."""
        if isinstance(origin, Rounded):
            self.rounding = origin.rounding

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Compute in fp32, and round a result that is a float.

        Vectors and tables of a model are stored as fp16, so they are rounded, too; matrices are read as they
        are stored.
        """
        rounding = next(each.rounding for each in _rounded((*inputs, options.get("out"))))
        given = [_plain(each) for each in inputs]
        if ufunc is not np.matmul:
            given = [_stored(each) for each in given]
        elif not isinstance(inputs[1], Rounded):
            given[0] = rounding.activations(given[0])
        out = options.pop("out", None)
        result = getattr(ufunc, method)(*given, **{name: _plain(each) for name, each in options.items()})
        if out is None:
            return _again(result, rounding)
        (target,) = out
        _plain(target)[...] = rounding.on(result)
        return target

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Compute in fp32, and round results that are floats; such functions mostly move numbers."""
        rounding = next(each.rounding for each in _rounded((args, kwargs)))
        return _again(func(*_plain(args), **_plain(kwargs)), rounding)


def exact(rows: Floats) -> Floats:
    """Return the same numbers, with which operations are exact."""
    found: Floats = _plain(rows)
    return found


def rounded_like(rows: Floats, other: Floats) -> Floats:
    """Return rows that are rounded, and round further results, if `other` does."""
    return other.rounding.on(rows) if isinstance(other, Rounded) else rows


def one_operation(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function of arrays one operation: of Rounded arguments it rounds only its result."""

    @wraps(function)
    def whole(*args: P.args, **kwargs: P.kwargs) -> R:
        rounding = next((each.rounding for each in _rounded((args, kwargs))), None)
        if rounding is None:
            return function(*args, **kwargs)
        return cast(R, _again(function(*_plain(args), **_plain(kwargs)), rounding))

    return whole


def _rounded(values: object) -> Iterator[Rounded]:
    if isinstance(values, Rounded):
        yield values
    elif isinstance(values, dict):
        for each in values.values():
            yield from _rounded(each)
    elif isinstance(values, tuple | list):
        for each in values:
            yield from _rounded(each)


def _plain(values: Any) -> Any:
    """Return a value, or those of a container, with plain arrays in place of Rounded ones."""
    if isinstance(values, Rounded):
        return values.view(np.ndarray)
    if isinstance(values, dict):
        return {name: _plain(each) for name, each in values.items()}
    if isinstance(values, tuple | list):
        return type(values)(_plain(each) for each in values)
    return values


_NEAREST = Rounding()


def _stored(value: Any) -> Any:
    """Return an array of floats as fp16 has it; numbers that are no arrays stay, since a graph folds them."""
    is_array = isinstance(value, np.ndarray) and value.ndim and np.issubdtype(value.dtype, np.floating)
    return _plain(_NEAREST.on(value)) if is_array else value


def _again(result: Any, rounding: Rounding) -> Any:
    """Return a result, or those in a sequence, rounded if they are arrays of floats."""
    if isinstance(result, tuple | list):
        return type(result)(_again(each, rounding) for each in result)
    is_float = isinstance(result, np.ndarray | np.floating) and np.issubdtype(result.dtype, np.floating)
    return rounding.on(result) if is_float else result
