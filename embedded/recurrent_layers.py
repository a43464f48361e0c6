"""The layers of hybrids that have no attention: short convolutions, Mamba 2 and gated delta nets."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from anespec.embedded.layers import Layer
from anespec.embedded.shape import Shape

CHUNK = 32
"""The rows whose part of a state is computed at once. It changes nothing but the speed."""

SHORTEST_STEP, LONGEST_STEP = 1e-3, 1e-1
"""The range of Mamba 2's steps before training, as in its paper."""


def tensors(**values: Tensor) -> nn.ParameterDict:
    """Return parameters that are no module of their own, such as `weight` and `bias`."""
    return nn.ParameterDict(values)


def convolution_kernel(channels: int, taps: int) -> Tensor:
    """Return a random kernel [channels, taps], whose outputs are about as large as the inputs."""
    return (torch.rand(channels, taps) * 2 - 1) * math.sqrt(3 / taps)


def convolved(x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the causal convolution of [batch, T, channels], each channel by itself."""
    padded = functional.pad(x.transpose(1, 2), (kernel.shape[1] - 1, 0))
    return functional.conv1d(padded, kernel[:, None], bias, groups=len(kernel)).transpose(1, 2)


def step_biases(heads: int) -> Tensor:
    """Return biases [heads] with which softplus gives steps from the shortest to the longest."""
    steps = torch.logspace(0, 1, heads, base=LONGEST_STEP / SHORTEST_STEP) * SHORTEST_STEP
    biases: Tensor = steps.expm1().log()
    return biases


def decay_rates(heads: int) -> Tensor:
    """Return how fast heads forget, by step; negative [heads]. They are not trained: the steps are."""
    return -torch.linspace(1, 16, heads)


def read_states(q: Tensor, k: Tensor, v: Tensor, decays: Tensor, beta: Tensor | None = None) -> Tensor:
    """Return what rows read of states that earlier rows wrote, [batch, heads, T, width], in float32.

    With S [state, width] of a head: S <- e^decay S; S <- S + k v; o = S q. With `beta` a row writes beta (v -
    S k) in place of v, which is the delta rule. `q` and `k` are [batch, heads, T, state]; `v` is [batch,
    heads, T, width]; `decays` and `beta` are [batch, heads, T].
    """
    state = q.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1])
    rows = []
    for begin in range(0, v.shape[2], CHUNK):
        here = slice(begin, begin + CHUNK)
        qs, ks, vs, sums = q[:, :, here], k[:, :, here], v[:, :, here], decays[:, :, here].cumsum(-1)
        later = torch.ones(sums.shape[-1], sums.shape[-1], dtype=torch.bool, device=v.device).triu(1)
        between = (sums[..., :, None] - sums[..., None, :]).masked_fill(later, -torch.inf).exp()
        if beta is not None:
            share = beta[:, :, here, None]
            vs = share * (vs - sums.exp()[..., None] * (ks @ state))
            system = (share * (ks @ ks.mT) * between).tril(-1)
            vs = torch.linalg.solve_triangular(system, vs, upper=False, unitriangular=True)
        rows.append(sums.exp()[..., None] * (qs @ state) + (qs @ ks.mT * between) @ vs)
        rest = (sums[..., -1:] - sums).exp()[..., None]
        state = sums[..., -1, None, None].exp() * state + (ks * rest).mT @ vs
    return torch.cat(rows, 2)


class ConvolutionLayer(Layer):
    """A layer with a gated short convolution (LFM2)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        d = shape.width
        self.shortconv = nn.ModuleDict(
            {
                "in_proj": nn.Linear(d, 3 * d, bias=False),
                "conv": tensors(weight=convolution_kernel(d, shape.taps)),
                "out_proj": nn.Linear(d, d, bias=False),
            }
        )

    def mixed(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the gated convolution."""
        before, after, own = self.shortconv["in_proj"](x).chunk(3, -1)
        kernel = self.shortconv["conv"].get_parameter("weight")
        output: Tensor = self.shortconv["out_proj"](after * convolved(before * own, kernel))
        return output


class MambaLayer(Layer):
    """A layer with Mamba 2 (https://arxiv.org/abs/2405.21060), whose heads share B and C."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        heads, inner = shape.recurrent_heads, shape.inner
        channels = inner + 2 * shape.groups * shape.state
        self.ssm_in = nn.Linear(shape.width, inner + channels + heads, bias=False)
        self.ssm_conv1d = tensors(weight=convolution_kernel(channels, shape.taps), bias=torch.zeros(channels))
        self.ssm_dt = tensors(bias=step_biases(heads))
        self.register_buffer("ssm_a", decay_rates(heads)[:, None])
        self.ssm_a: Tensor
        self.ssm_d = nn.Parameter(torch.ones(heads, 1))
        self.ssm_norm = tensors(weight=torch.ones(shape.groups, inner // shape.groups))
        self.ssm_out = nn.Linear(inner, shape.width, bias=False)

    def mixed(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return Mamba 2."""
        shape, heads = self.shape, self.shape.recurrent_heads
        state = shape.groups * shape.state
        gate, inputs, steps = self.ssm_in(x).split((shape.inner, shape.inner + 2 * state, heads), -1)
        convolution = self.ssm_conv1d
        inputs = functional.silu(
            convolved(inputs, convolution.get_parameter("weight"), convolution.get_parameter("bias"))
        )
        values, b, c = torch.split(inputs.float(), [shape.inner, state, state], -1)
        values = values.reshape(*x.shape[:2], heads, -1).transpose(1, 2)
        b, c = (part[:, None].expand(-1, heads, -1, -1) for part in (b, c))
        steps = functional.softplus(steps.float() + self.ssm_dt.get_parameter("bias")).transpose(1, 2)
        read = read_states(c, b, steps[..., None] * values, steps * self.ssm_a)
        rows = (read + self.ssm_d[:, :, None] * values).transpose(1, 2).flatten(-2).to(x.dtype)
        weight = self.ssm_norm.get_parameter("weight").flatten()
        normed = functional.rms_norm(rows * functional.silu(gate), (shape.inner,), weight, shape.norm_epsilon)
        output: Tensor = self.ssm_out(normed)
        return output


class DeltaLayer(Layer):
    """A layer with a gated delta net (https://arxiv.org/abs/2412.06464)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        d, heads, inner = shape.width, shape.recurrent_heads, shape.inner
        channels = inner + 2 * shape.groups * shape.state
        self.attn_qkv = nn.Linear(d, channels, bias=False)
        self.attn_gate = nn.Linear(d, inner, bias=False)
        self.ssm_beta = nn.Linear(d, heads, bias=False)
        self.ssm_alpha = nn.Linear(d, heads, bias=False)
        self.ssm_conv1d = tensors(weight=convolution_kernel(channels, shape.taps))
        self.ssm_dt = tensors(bias=step_biases(heads))
        self.register_buffer("ssm_a", decay_rates(heads))
        self.ssm_a: Tensor
        self.ssm_norm = nn.RMSNorm(shape.state, eps=shape.norm_epsilon)
        self.ssm_out = nn.Linear(inner, d, bias=False)

    def mixed(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the gated delta net."""
        shape = self.shape
        inputs = functional.silu(convolved(self.attn_qkv(x), self.ssm_conv1d.get_parameter("weight")))
        parts = inputs.float().reshape(*x.shape[:2], -1, shape.state).transpose(1, 2)
        q, k, v = torch.split(parts, [shape.groups, shape.groups, shape.recurrent_heads], 1)
        # Value head j has the key head j mod groups.
        times = shape.recurrent_heads // shape.groups
        q, k = (
            (part * (part.square().sum(-1, keepdim=True) + shape.norm_epsilon).rsqrt()).repeat(1, times, 1, 1)
            for part in (q, k)
        )
        steps = functional.softplus(self.ssm_alpha(x).float() + self.ssm_dt.get_parameter("bias"))
        beta = self.ssm_beta(x).float().sigmoid().transpose(1, 2)
        read = read_states(q * shape.state**-0.5, k, v, (steps * self.ssm_a).transpose(1, 2), beta)
        rows = self.ssm_norm(read).transpose(1, 2).flatten(-2).to(x.dtype)
        output: Tensor = self.ssm_out(rows * functional.silu(self.attn_gate(x)))
        return output


RECURRENT_LAYERS: Mapping[str, type[Layer]] = {
    "lfm2": ConvolutionLayer,
    "granitehybrid": MambaLayer,
    "qwen35": DeltaLayer,
}
"""The layers without attention of each architecture that has some."""
