"""The slots that a pass writes, of its write masks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from anespec.runtime.backends.runner import Homes, Tensor


def homes_of(written: Tensor | Homes) -> Homes:
    """The slots that lanes write, of a write mask or of such numbers themselves.

    Raises:
        ValueError: the contract of kv_write_mask is broken.
    """
    homes = _homes_of_mask(written) if written.ndim > 1 else written.astype(np.int32)
    taken = homes[homes >= 0]
    if not taken.size or np.unique(taken).size < taken.size:
        raise ValueError("a write mask must write at least one slot, each row one slot of its own")
    return homes


def side_by_side(homes: Homes) -> Homes:
    """The slots that all lanes write where those of a pass are side by side: pads write behind the last row.

    Raises:
        ValueError: lane 0 writes nowhere, or a lane another slot than that behind the slot of the last lane.
    """
    slots: Homes = (homes[0] + np.arange(len(homes))).astype(np.int32)
    if homes[0] < 0 or ((homes >= 0) & (homes != slots)).any():
        raise ValueError(f"the slots {homes.tolist()} are not side by side from lane 0 on")
    return slots


def _homes_of_mask(mask: NDArray[Any]) -> Homes:
    slots, lanes = np.nonzero(mask[0, 0])
    if np.unique(lanes).size < lanes.size or (mask[0, 0, slots, lanes] != 1).any():
        raise ValueError("a write mask must have no more than a single one in each of its columns")
    homes = np.full(mask.shape[3], -1, np.int32)
    homes[lanes] = slots
    return homes
