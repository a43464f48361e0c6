"""Build gated delta nets (https://arxiv.org/abs/2412.06464) over the rows of a chunk and a carried state.

With S0 the state at the chunk's start, g < 0 the logarithm of a row's decay, D_i the sum of g up to row i and
D_ij that behind row j, a row keeps

    b_i = beta_i (v_i - e^(D_i) S0^T k_i)

beside k_i, g_i and beta_i. The rows change the state one after the other: row i writes u_i = b_i - sum_j<i
A_ij u_j with A_ij = beta_i (k_i . k_j) e^(D_ij), so that u = (I + A)^-1 b, and reads

    o_i = e^(D_i) S0^T q_i + sum_j<=i (q_i . k_j) e^(D_ij) u_j
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anespec.convert.graph.builder import Var, mb
from anespec.convert.graph.heads import merge_heads, split_heads
from anespec.convert.graph.norm import HEAD, rms_norm
from anespec.convert.graph.projection import Projection, project
from anespec.convert.mixers.delta_net.facts import DeltaFacts
from anespec.convert.mixers.mixer import ShardVars
from anespec.convert.mixers.recurrent.chunks import Chunk, RecurrentPlan, on_diagonal, rows_of_heads, softplus
from anespec.convert.mixers.short_conv.graph import convolve
from anespec.manifests.graph_choices import ChunkSolve
from anespec.manifests.schema import padded

FIRST_BLOCK = 4
"""The size of the blocks within which the inverse is computed first."""

BROADCAST_BLOCK = 8
"""The same for a solve by broadcasts: with 8 rows it stayed on a Neural Engine, where matrix products of that
size ended on the GPU (B: anemll-forge SESSION_LESSONS)."""

GROWTH = 4
"""How many blocks become one in the next step."""


@dataclass(frozen=True)
class DeltaPlan(RecurrentPlan[DeltaFacts]):
    """The plan of a layer's gated delta net; it keeps a row's key, what it writes, and its decay and beta."""

    solve: ChunkSolve

    kind = "delta"

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """The heads and the width of each part of a row."""
        sizes = self.sizes
        gates = 1, padded(2 * sizes.heads)
        return (sizes.heads, sizes.key_dim), (sizes.heads, sizes.value_dim), gates


@dataclass(frozen=True)
class SeparateGates:
    """The projections of steps, which includes their bias, and of betas; rows are by value head."""

    alpha: Projection
    beta: Projection


@dataclass(frozen=True)
class JoinedGates:
    """One projection of both: for each key head the betas of its value heads, then their steps.

    `bias` (value heads,) belongs to the steps.
    """

    both: Projection
    bias: NDArray[np.float16]


@dataclass(frozen=True)
class DeltaWeights:
    """The weights of a layer's gated delta net.

    The kernel is (channels, taps). `decay` is by value head, `norm` by a head's channel.
    """

    inputs: Projection
    gate: Projection
    gates: SeparateGates | JoinedGates
    output: Projection
    kernel: NDArray[np.float16]
    decay: NDArray[np.float32]
    norm: NDArray[np.float16]


@dataclass(frozen=True)
class DeltaNet:
    """A layer's gated delta net with its weights; see Mixer."""

    plan: DeltaPlan
    weights: DeltaWeights

    def __call__(self, x: Var, shard: ShardVars, name: str) -> Var:
        """Write the rows into their chunk's slots, and read what the chunk and the carried state hold."""
        plan, weights, sizes = self.plan, self.weights, self.plan.sizes
        heads, width = sizes.heads, padded(2 * sizes.heads)
        query, key, value = self._convolved(x, shard, name)
        steps, beta = self._steps(x, name)
        gates = mb.add(
            x=mb.matmul(x=steps, y=on_diagonal(weights.decay, width)),
            y=mb.matmul(x=beta, y=on_diagonal(np.ones(heads, np.float32), width, heads)),
        )
        chunk = Chunk.of(plan.chunk, shard)
        keys = chunk.write(plan.rows, 0, key, shard, f"{name}_delta_k")
        logs, betas = chunk.write_gates(plan.rows, 2, gates, [heads] * 2, shard, f"{name}_delta_g")
        decays = chunk.all_decays(logs)
        since, between = chunk.of_rows(decays)
        carried = mb.reshape(
            x=shard.read(plan.state), shape=(heads, chunk.sequences, sizes.key_dim, sizes.value_dim)
        )
        held = chunk.own(mb.mul(x=mb.matmul(x=_by_head(key, heads), y=carried), y=since))
        own_beta = _by_head(mb.transpose(x=beta, perm=[0, 3, 2, 1]), heads)
        fresh = mb.mul(x=mb.sub(x=_by_head(value, heads), y=held), y=own_beta)
        fresh = mb.reshape(x=fresh, shape=(1, heads, -1, sizes.value_dim))
        values = chunk.write(plan.rows, 1, fresh, shard, f"{name}_delta_b")
        inverse = _inverse(_influence(keys, betas, decays, chunk), chunk.rows, plan.solve)
        asked = _by_head(query, heads)
        scores = mb.mul(x=mb.matmul(x=asked, y=keys, transpose_y=True), y=between)
        inside = mb.matmul(x=mb.matmul(x=scores, y=inverse), y=values)
        before = mb.mul(x=mb.matmul(x=asked, y=carried), y=since)
        read = mb.reshape(x=chunk.own(mb.add(x=before, y=inside)), shape=(1, heads, -1, sizes.value_dim))
        # Queries have length 1, so what was read lacks the factor 1 / sqrt(key_dim), which the norm undoes.
        epsilon = plan.epsilon * sizes.key_dim
        normed = rms_norm(read, weights.norm, epsilon, f"{name}_delta_norm", HEAD)
        gate = mb.silu(x=project(x, weights.gate, f"{name}_output_gate"))
        gated = mb.mul(x=merge_heads(normed, shard.layout), y=gate)
        return project(gated, weights.output, f"{name}_ssm_out")

    def _steps(self, x: Var, name: str) -> tuple[Var, Var]:
        """Return the steps and the betas of rows, [1, 1, T, value heads] each."""
        gates, sizes = self.weights.gates, self.plan.sizes
        if isinstance(gates, SeparateGates):
            steps = split_heads(softplus(project(x, gates.alpha, f"{name}_alpha")), 1, sizes.heads)
            return steps, split_heads(mb.sigmoid(x=project(x, gates.beta, f"{name}_beta")), 1, sizes.heads)
        times = sizes.heads // sizes.key_heads
        both = split_heads(project(x, gates.both, f"{name}_beta_alpha"), 1, 2 * sizes.heads)
        by_key_head = mb.reshape(x=both, shape=(1, -1, sizes.key_heads, 2 * times))
        beta, alpha = mb.split(x=by_key_head, num_splits=2, axis=3)
        beta, alpha = (mb.reshape(x=part, shape=(1, 1, -1, sizes.heads)) for part in (beta, alpha))
        return softplus(mb.add(x=alpha, y=gates.bias.reshape(1, 1, 1, -1))), mb.sigmoid(x=beta)

    def _convolved(self, x: Var, shard: ShardVars, name: str) -> tuple[Var, Var, Var]:
        """Return queries and keys of length 1, and values: [1, value heads, T, width] each."""
        weights, sizes = self.weights, self.plan.sizes
        rows = split_heads(project(x, weights.inputs, f"{name}_qkv"), 1, sizes.channels)
        mixed = mb.silu(x=convolve(rows, weights.kernel, self.plan.inputs, shard, f"{name}_delta"))
        width = sizes.key_heads * sizes.key_dim
        query, key, value = mb.split(x=mixed, split_sizes=[width, width, sizes.inner], axis=3)
        query, key = (self._unit(part, f"{name}_delta_{what}") for part, what in ((query, "q"), (key, "k")))
        return query, key, rows_of_heads(value, sizes.heads, sizes.value_dim)

    def _unit(self, rows: Var, name: str) -> Var:
        """Return the heads of rows with length 1, all of them once for every group of value heads."""
        sizes = self.plan.sizes
        heads = rows_of_heads(rows, sizes.key_heads, sizes.key_dim)
        normed = rms_norm(heads, None, self.plan.epsilon / sizes.key_dim, f"{name}_norm", HEAD)
        unit = mb.mul(x=normed, y=np.float16(sizes.key_dim**-0.5))
        times = sizes.heads // sizes.key_heads
        if times == 1:
            return unit
        if sizes.tiled:
            return mb.concat(values=[unit] * times, axis=1)
        own = mb.split(x=unit, num_splits=sizes.key_heads, axis=1) if sizes.key_heads > 1 else [unit]
        return mb.concat(values=[head for head in own for _ in range(times)], axis=1)


def _by_head(x: Var, heads: int) -> Var:
    """Return [1, heads, T, width] as [heads, 1, T, width], to be read with what sequences have."""
    return mb.reshape(x=x, shape=(heads, 1, -1, int(x.shape[3])))


def _influence(keys: Var, betas: Var, decays: Var, chunk: Chunk) -> Var:
    """Return A [heads, N, C, C]: how much of what an earlier row wrote a row takes back."""
    _, between = mb.split(x=decays, split_sizes=[1, chunk.rows], axis=3)
    alike = mb.mul(x=mb.matmul(x=keys, y=keys, transpose_y=True), y=between)
    column = mb.reshape(x=betas, shape=(*map(int, betas.shape[:2]), chunk.rows, 1))
    earlier = np.tril(np.ones((chunk.rows, chunk.rows), np.float16), -1)[None, None]
    return mb.mul(x=mb.mul(x=alike, y=column), y=earlier)


def _inverse(a: Var, rows: int, solve: ChunkSolve) -> Var:
    """Return (I + a)^-1 for strictly lower a [heads, N, C, C]: within blocks, then of ever larger ones.

    Row i of it is made of rows up to i alone: what is behind meets exact zeros. Powers of all of `a` would
    grow like binomials beyond what fp16 can subtract again; within few blocks they are short.
    """
    eye = np.eye(rows, dtype=np.float16)[None, None]
    if solve is ChunkSolve.BROADCAST:
        size = min(BROADCAST_BLOCK, rows)
        inverse = _within_blocks(a, rows, size)
    else:
        size = min(FIRST_BLOCK, rows)
        near = mb.mul(x=a, y=_same_block(rows, size)) if size < rows else a
        # The fourth power of a block of four rows is zero: (I + n)^-1 = (I - n)(I + n^2).
        inverse = mb.matmul(x=mb.sub(x=eye, y=near), y=mb.add(x=mb.matmul(x=near, y=near), y=eye))
    while size < rows:
        wider = min(size * GROWTH, rows)
        ring = _same_block(rows, wider) - _same_block(rows, size)
        far = mb.matmul(x=inverse, y=mb.mul(x=a, y=ring))
        left = mb.sub(x=eye, y=far)
        if wider > 2 * size:
            left = mb.matmul(x=left, y=mb.add(x=mb.matmul(x=far, y=far), y=eye))
        inverse = mb.matmul(x=left, y=inverse)
        size = wider
    return inverse


def _within_blocks(a: Var, rows: int, size: int) -> Var:
    """Return the inverse within blocks of eight rows at most, without matrix products.

    The eighth power n^8 of such a block is zero: (I + n)^-1 = (I - n)(I + n^2)(I + n^4).
    """
    heads, sequences = map(int, a.shape[:2])
    blocks, near = rows // size, a
    if blocks > 1:
        # All numbers outside the blocks are exact zeros, so that adding the columns loses nothing.
        near, *others = mb.split(x=mb.mul(x=a, y=_same_block(rows, size)), num_splits=blocks, axis=3)
        for other in others:
            near = mb.add(x=near, y=other)
    near = mb.reshape(x=near, shape=(heads * sequences * blocks, 1, size, size))
    eye = np.eye(size, dtype=np.float16)[None, None]
    square = _broadcast_product(near, near)
    fourth = _broadcast_product(square, square)
    inverse = _broadcast_product(mb.sub(x=eye, y=near), mb.add(x=eye, y=square))
    inverse = _broadcast_product(inverse, mb.add(x=eye, y=fourth))
    stacked = mb.reshape(x=inverse, shape=(heads, sequences, rows, size))
    if blocks == 1:
        return stacked
    return mb.mul(x=mb.concat(values=[stacked] * blocks, axis=3), y=_same_block(rows, size))


def _broadcast_product(x: Var, y: Var) -> Var:
    """Return the matrix products x y of [M, 1, B, B], as products of elements and their sums."""
    count, _, size, _ = map(int, y.shape)
    left = mb.reshape(x=x, shape=(count, size, size, 1))
    summed = mb.reduce_sum(x=mb.mul(x=left, y=y), axes=[2], keep_dims=True)
    return mb.reshape(x=summed, shape=(count, 1, size, size))


def _same_block(rows: int, size: int) -> NDArray[np.float16]:
    """Return [1, 1, C, C]: 1 where both places are in the same block of `size`."""
    block = np.arange(rows) // size
    same: NDArray[np.float16] = (block[:, None] == block[None, :]).astype(np.float16)
    return same[None, None]
