"""Folding a chunk equals the recurrences row by row, which are written here in float64."""

import numpy as np
import pytest
from numpy.typing import NDArray

from anespec.runtime.kv.folding import fold_delta, fold_ssd

Double = NDArray[np.float64]


def half(values: Double) -> NDArray[np.float16]:
    return values.astype(np.float16)


def gates(decays: Double, betas: Double | None = None, width: int = 32) -> NDArray[np.float16]:
    """Return a state's rows of decays [1, 1, C, width], padded with zeros."""
    parts = [decays] if betas is None else [decays, betas]
    rows = np.concatenate(parts, axis=0).T
    return half(np.pad(rows, ((0, 0), (0, width - rows.shape[1])))[None, None])


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_mamba_2_row_by_row(groups: int) -> None:
    random = np.random.default_rng(groups)
    heads, rows, size, dim = 4, 16, 6, 5
    b, x = half(random.normal(size=(1, groups, rows, size))), half(random.normal(size=(1, heads, rows, dim)))
    g, s = gates(-random.uniform(0, 0.4, (heads, rows))), half(random.normal(size=(1, heads, 1, size * dim)))
    state = s.astype(np.float64).reshape(heads, size, dim)
    for row in range(rows):
        for head in range(heads):
            decay = np.exp(np.float64(g[0, 0, row, head]))
            written = np.outer(b[0, head * groups // heads, row], x[0, head, row])
            state[head] = decay * state[head] + written
    np.testing.assert_allclose(fold_ssd(b, x, g, s).reshape(state.shape), state, rtol=2e-3, atol=2e-3)


def test_delta_net_row_by_row() -> None:
    random = np.random.default_rng(0)
    heads, rows, keys, values = 3, 16, 8, 5
    k = random.normal(size=(1, heads, rows, keys))
    k = half(k / np.linalg.norm(k, axis=-1, keepdims=True))
    v, s = random.normal(size=(heads, rows, values)), half(random.normal(size=(1, heads, 1, keys * values)))
    g = gates(-random.uniform(0, 0.4, (heads, rows)), random.uniform(0, 1, (heads, rows)))
    start = s.astype(np.float64).reshape(heads, keys, values)
    state, written = start.copy(), np.zeros((1, heads, rows, values))
    for head in range(heads):
        for row in range(rows):
            key, beta = k[0, head, row].astype(np.float64), np.float64(g[0, 0, row, heads + head])
            since = np.exp(g[0, 0, : row + 1, head].astype(np.float64).sum())
            written[0, head, row] = beta * (v[head, row] - since * key @ start[head])
            state[head] *= np.exp(np.float64(g[0, 0, row, head]))
            state[head] += np.outer(key, beta * (v[head, row] - key @ state[head]))
    folded = fold_delta(k, half(written), g, s).reshape(state.shape)
    np.testing.assert_allclose(folded, state, rtol=5e-3, atol=5e-3)


def test_a_chunk_of_zeros_leaves_the_state() -> None:
    state = half(np.random.default_rng(0).normal(size=(1, 2, 1, 12)))
    none = np.zeros((1, 2, 8, 3), np.float16), np.zeros((1, 2, 8, 4), np.float16), gates(np.zeros((2, 8)))
    np.testing.assert_array_equal(fold_ssd(*none, state), state)
    np.testing.assert_array_equal(fold_delta(*none, state), state)
