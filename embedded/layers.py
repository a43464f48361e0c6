"""The networks' layers in torch: a part that mixes rows, and a SwiGLU.

Modules have the names of GGUF tensors, and compute what llama.cpp defines for the architecture.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from anespec.embedded.shape import Shape


def rope_tables(shape: Shape) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of the rotary embedding, each float32 [context, head_dim / 2]."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(torch.arange(shape.context, dtype=torch.float32), shape.rope_base**-exponents)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, neox: bool) -> Tensor:
    """Rotate pairs of `x` [batch, heads, T, head_dim]; `cos` and `sin` are [T, head_dim / 2].

    Pairs are neighbours (0, 1), (2, 3)…, as in GGUF's architecture `llama`, or, if `neox`, the halves.
    """
    if neox:
        first, second = x.float().chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)
    even, odd = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2).to(x.dtype)


class Layer(nn.Module):
    """A mixer, which the subclass defines, and a SwiGLU, each with an RMSNorm before it and a residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        d = shape.width
        self.attn_norm = nn.RMSNorm(d, eps=shape.norm_epsilon)
        self.add_module(shape.style.mlp_norm, nn.RMSNorm(d, eps=shape.norm_epsilon))
        self.ffn_gate = nn.Linear(d, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(d, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, d, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the layer's output for [batch, T, width], in the same shape."""
        x = x + self.mixed(self.attn_norm(x), cos, sin)
        y = getattr(self, self.shape.style.mlp_norm)(x)
        output: Tensor = x + self.ffn_down(functional.silu(self.ffn_gate(y)) * self.ffn_up(y))
        return output

    def mixed(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the mixer's output for [batch, T, width], in the same shape; rows see no later row."""
        raise NotImplementedError


class AttentionLayer(Layer):
    """A layer with grouped-query attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        d, kv, style = shape.width, shape.kv_heads * shape.head_dim, shape.style
        self.attn_q = nn.Linear(d, 2 * d if style.output_gate else d, bias=False)
        self.attn_k = nn.Linear(d, kv, bias=False)
        self.attn_v = nn.Linear(d, kv, bias=False)
        self.attn_output = nn.Linear(d, d, bias=False)
        if style.head_norms:
            self.attn_q_norm = nn.RMSNorm(shape.head_dim, eps=shape.norm_epsilon)
            self.attn_k_norm = nn.RMSNorm(shape.head_dim, eps=shape.norm_epsilon)

    def mixed(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return causal attention."""
        shape, style = self.shape, self.shape.style
        # A head's gate is behind its query.
        q, *gates = self.attn_q(x).unflatten(-1, (shape.heads, -1)).split(shape.head_dim, -1)
        k, v = (part(x).unflatten(-1, (shape.kv_heads, -1)) for part in (self.attn_k, self.attn_v))
        if style.head_norms:
            q, k = self.attn_q_norm(q), self.attn_k_norm(k)
        q, k = (rotate(part.transpose(1, 2), cos, sin, neox=style.neox) for part in (q, k))
        group = shape.heads // shape.kv_heads
        k, v = k.repeat_interleave(group, 1), v.transpose(1, 2).repeat_interleave(group, 1)
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        for gate in gates:
            heads = heads * gate.sigmoid()
        output: Tensor = self.attn_output(heads.flatten(-2))
        return output
