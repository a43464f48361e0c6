"""The KV state: written by a mask blend, never by a scatter, which leaves the Neural Engine."""

import numpy as np

from anespec.convert.graph.builder import Var, mb


def kept_slots(write_mask: Var) -> Var:
    """1 for every slot that no row of the block writes, else 0: [1, 1, S, T] -> [1, 1, S, 1]."""
    return mb.sub(x=np.float16(1), y=mb.reduce_sum(x=write_mask, axes=[3], keep_dims=True))


def write(state: Var, new: Var, write_mask: Var, kept: Var, name: str) -> Var:
    """Put row t of `new` [1, n_kv, T, head_dim] into its slot; returns the updated state.

    A column of the mask that is all zero writes nowhere. Every value must be finite: 0 x infinity
    is not a number.
    """
    old = mb.read_state(input=state)
    blended = mb.add(x=mb.mul(x=old, y=kept), y=mb.matmul(x=write_mask, y=new))
    return mb.coreml_update_state(state=state, value=blended, name=name)
