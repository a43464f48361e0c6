"""Fold a full chunk of a recurrent layer into the state that the layer carries from chunk to chunk.

These are functions of a chunk's rows and the old state alone, so the result does not depend on the passes
that wrote the rows. All compute in fp32, and take and return the fp16 of states. A value beyond fp16's range
becomes an infinity or no number, which the caller must not store.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Half = NDArray[np.float16]
Single = NDArray[np.float32]


def fold_ssd(b: Half, x: Half, g: Half, s: Half) -> Half:
    """Return the state of Mamba 2 at the end of a chunk of C rows; `s` is the one at its start.

    `b` [1, groups, C, state], `x` = dt x [1, heads, C, head_dim] and the logarithms of the decays `g`
    [1, 1, C, heads or more] are the chunk's rows; consecutive heads share a group. `s` is [1, heads, 1,
    state * head_dim], and so is the result: e^(g_0 + ... + g_C-1) s + sum_i e^(g_i+1 + ... + g_C-1) b_i x_i.
    """
    heads = x.shape[1]
    keys = np.repeat(_single(b[0]), heads // b.shape[1], axis=0)
    return _folded(keys, _single(x[0]), _single(g[0, 0, :, :heads]).T, s)


def fold_delta(k: Half, b: Half, g: Half, s: Half) -> Half:
    """Return the state of a gated delta net at the end of a chunk of C rows; `s` is the one at its start.

    `k` [1, heads, C, key_dim], `b` = beta (v - e^G s^T k) [1, heads, C, value_dim], and `g` [1, 1, C, 2 heads
    or more] are the chunk's rows: the logarithms of the decays by head, then the betas. `s` is [1, heads, 1,
    key_dim * value_dim], and so is the result.

    With D_ij the sum of the decays' logarithms behind row j up to row i, row i writes u_i = b_i - beta_i
    sum_j<i (k_i . k_j) e^D_ij u_j, and the state becomes e^G s + sum_i e^D_Ci k_i u_i.
    """
    heads, rows = k.shape[1:3]
    keys, written = _single(k[0]), _single(b[0]).copy()
    decays, betas = _single(g[0, 0, :, :heads]).T, _single(g[0, 0, :, heads : 2 * heads]).T
    total = np.cumsum(decays, axis=1)
    # The lower triangle alone, where no exponent is above zero.
    between = np.exp(np.tril(total[:, :, None] - total[:, None, :]))
    weights = np.tril(keys @ keys.transpose(0, 2, 1) * between * betas[:, :, None], -1)
    for row in range(1, rows):
        written[:, row] -= (weights[:, row, None, :row] @ written[:, :row])[:, 0]
    return _folded(keys, written, decays, s)


FOLD_OF: Mapping[str, Callable[[Half, Half, Half, Half], Half]] = MappingProxyType(
    {"ssd": fold_ssd, "delta": fold_delta}
)
"""The functions by the kind of manifests.schema.Fold."""

FOLDED_BY = f"numpy {np.__version__}"
"""What computes them, which verdicts record: another library may round otherwise."""


def _folded(keys: Single, values: Single, decays: Single, s: Half) -> Half:
    """Return e^G s + sum_i e^D_Ci keys_i values_i for [heads, C, ...] rows and decays [heads, C]."""
    old = _single(s[0, :, 0]).reshape(len(keys), keys.shape[2], values.shape[2])
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.cumsum(decays, axis=1)
        weighed = keys * np.exp(total[:, -1:] - total)[:, :, None]
        new = old * np.exp(total[:, -1])[:, None, None] + weighed.transpose(0, 2, 1) @ values
        folded: Half = new.astype(np.float16).reshape(s.shape)
    return folded


def _single(values: Half) -> Single:
    return values.astype(np.float32)
