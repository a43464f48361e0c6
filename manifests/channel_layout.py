"""The layout of channel tensors: hidden states, embeddings and logits, C channels for each of T rows.

No other module names their axes.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.generic)

CHANNELS_AXIS, ROWS_AXIS, SINGLE_AXIS = 1, 2, 3
"""The axes of [1, C, T, 1] after the first; the last one has a single element."""


def channel_shape(channels: int, rows: int | None = None) -> tuple[int, int, int | None, int]:
    """Return the shape of a channel tensor; None for T rows of any number."""
    return (1, channels, rows, 1)


def is_channel_shape(shape: Sequence[int | None]) -> bool:
    """Return whether a shape may be that of a channel tensor."""
    return len(shape) == 4 and shape[0] == shape[SINGLE_AXIS] == 1


def channels_of(shape: Sequence[int | None]) -> int | None:
    """Return the channels of a declared channel tensor; None for any other shape."""
    is_declared = is_channel_shape(shape) and shape[ROWS_AXIS] is None
    return shape[CHANNELS_AXIS] if is_declared else None


def row_count(tensor: NDArray[Number]) -> int:
    """Return T of a channel tensor."""
    return int(tensor.shape[ROWS_AXIS])


def from_rows(rows: NDArray[Number]) -> NDArray[Number]:
    """Return rows [T, C] as a channel tensor, a view."""
    return rows.T[None, :, :, None]


def to_rows(tensor: NDArray[Number]) -> NDArray[Number]:
    """Return the rows [T, C] of a channel tensor, a view."""
    return tensor[0, :, :, 0].T


def row_of(tensor: NDArray[Number], row: int) -> NDArray[Number]:
    """Return the channels [C] of one row of a channel tensor, a view."""
    channels: NDArray[Number] = tensor[0, :, row, 0]
    return channels
