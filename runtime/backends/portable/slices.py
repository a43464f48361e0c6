"""The bounds of slice_by_index and slice_update: constants, or of a slice_update also values of the pass."""

from collections.abc import Sequence
from typing import TypeVar

from anespec.runtime.backends.portable.arguments import Arguments

ValueT = TypeVar("ValueT")


def slices_of(
    a: Arguments[ValueT], shape: tuple[int, ...], bounds: tuple[Sequence[int], Sequence[int]] | None = None
) -> tuple[slice, ...]:
    """Return the part of a value of `shape` that the operation reads or replaces; every slice has explicit
    ends.

    `bounds` are where it begins and ends, by axis, if those are no constants.

    Raises:
        ArtifactError: it takes nothing, more than there is, every other number, or drops an axis.
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
