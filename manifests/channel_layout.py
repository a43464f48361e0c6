"""The layouts of channel tensors: hidden states, embeddings and logits, C channels for each of T rows.

In both layouts the rows are innermost, so a channel tensor has the same numbers in the same order in both. No
other module refers to the axes.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.generic)
Shape = tuple[int | None, ...]

CHANNELS_AXIS = 1
"""The axis of channels, in both layouts."""


class ChannelLayout(StrEnum):
    """The axis of the rows in a channel tensor: third, [1, C, T, 1], or last, [1, C, 1, T].

    A Neural Engine pads a last axis of one element to 32 times its size (A: Apple's guide to transformers on
    the Neural Engine).
    """

    ROWS_THIRD = "rows_third"
    ROWS_LAST = "rows_last"

    @property
    def rows_axis(self) -> int:
        """The axis of the rows."""
        return 2 if self is ChannelLayout.ROWS_THIRD else 3

    @property
    def single_axis(self) -> int:
        """The other axis after the channels, which has one element."""
        return 3 if self is ChannelLayout.ROWS_THIRD else 2


DECLARED = ChannelLayout.ROWS_THIRD
"""The layout of shapes in a manifest, also for functions with another layout."""


def channel_shape(channels: int, rows: int | None = None, layout: ChannelLayout = DECLARED) -> Shape:
    """Return the shape of a channel tensor with T = `rows`; None means any number."""
    return (1, channels, rows, 1) if layout is ChannelLayout.ROWS_THIRD else (1, channels, 1, rows)


def layout_of(shape: Sequence[int | None]) -> ChannelLayout | None:
    """Return the layout of a channel tensor's shape, None for any other shape.

    With a single row the shapes of both layouts are the same; then ROWS_THIRD is returned.
    """
    if len(shape) == 4 and shape[0] == 1:
        if shape[ChannelLayout.ROWS_THIRD.single_axis] == 1:
            return ChannelLayout.ROWS_THIRD
        # [1, 1, 1, S] is an attention mask of one row.
        if shape[ChannelLayout.ROWS_LAST.single_axis] == 1 and shape[CHANNELS_AXIS] != 1:
            return ChannelLayout.ROWS_LAST
    return None


def channels_of(shape: Sequence[int | None]) -> int | None:
    """Return the channels of a channel tensor in a manifest; None for any other shape."""
    channels = shape[CHANNELS_AXIS] if len(shape) == 4 else None
    return channels if channels is not None and tuple(shape) == channel_shape(channels) else None


def shape_in(
    shape: Shape, layout: ChannelLayout, rows: int | None = None, own: ChannelLayout = DECLARED
) -> Shape:
    """Convert the shape of a channel tensor with T = `rows` from the layout `own` to `layout`.

    Any other shape is returned unchanged.
    """
    channels = shape[CHANNELS_AXIS] if len(shape) == 4 else None
    if channels is None or shape != channel_shape(channels, rows, own):
        return shape
    return channel_shape(channels, rows, layout)


def shape_at(shape: Sequence[int | None], rows: int, layout: ChannelLayout = DECLARED) -> tuple[int, ...]:
    """Return a declared shape in a pass over `rows` rows, in this layout; its None dimensions are T."""
    return tuple(rows if size is None else size for size in shape_in(tuple(shape), layout))


def laid_out(tensor: NDArray[Number], layout: ChannelLayout) -> NDArray[Number]:
    """Return a channel tensor of either layout in the layout `layout`, as a view if possible."""
    shape = channel_shape(tensor.shape[CHANNELS_AXIS], layout=layout)
    return tensor.reshape([-1 if size is None else size for size in shape])


def row_count(tensor: NDArray[Number]) -> int:
    """Return T of a channel tensor of either layout."""
    return int(np.prod(tensor.shape[CHANNELS_AXIS + 1 :]))


def from_rows(rows: NDArray[Number], layout: ChannelLayout = DECLARED) -> NDArray[Number]:
    """Return rows [T, C] as a channel tensor, a view."""
    return np.expand_dims(rows.T, (0, layout.single_axis))


def to_rows(tensor: NDArray[Number]) -> NDArray[Number]:
    """Return the rows [T, C] of a channel tensor of either layout, as a view if possible."""
    return tensor.reshape(tensor.shape[CHANNELS_AXIS], -1).T


def row_of(tensor: NDArray[Number], row: int) -> NDArray[Number]:
    """Return the channels [C] of one row of a channel tensor of either layout."""
    channels: NDArray[Number] = to_rows(tensor)[row]
    return channels
