"""The demo model's network in torch: the Llama architecture as llama.cpp defines it.

Modules have the names of GGUF tensors, so a state dict has the same names as the file.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

INIT_STD = 0.02


@dataclass(frozen=True)
class Shape:
    """The hyperparameters. Row lengths must be multiples of 32 for Q8_0."""

    vocabulary: int = 2048
    width: int = 256
    layers: int = 6
    heads: int = 8
    kv_heads: int = 4
    feed_forward: int = 704
    context: int = 1024
    rope_base: float = 10000.0
    norm_epsilon: float = 1e-5

    @property
    def head_dim(self) -> int:
        """The dimensions of an attention head."""
        return self.width // self.heads


def rope_tables(shape: Shape) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of the rotary embedding, each float32 [context, head_dim / 2]."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(torch.arange(shape.context, dtype=torch.float32), shape.rope_base**-exponents)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate neighbouring pairs (0, 1), (2, 3)…, as in GGUF's architecture `llama`.

    `x` is [batch, heads, T, head_dim]; `cos` and `sin` are [T, head_dim / 2].
    """
    even, odd = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2).to(x.dtype)


class Layer(nn.Module):
    """Grouped-query attention and a SwiGLU, each with an RMSNorm before it and a residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        d, kv = shape.width, shape.kv_heads * shape.head_dim
        self.attn_norm = nn.RMSNorm(d, eps=shape.norm_epsilon)
        self.attn_q = nn.Linear(d, d, bias=False)
        self.attn_k = nn.Linear(d, kv, bias=False)
        self.attn_v = nn.Linear(d, kv, bias=False)
        self.attn_output = nn.Linear(d, d, bias=False)
        self.ffn_norm = nn.RMSNorm(d, eps=shape.norm_epsilon)
        self.ffn_gate = nn.Linear(d, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(d, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, d, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the layer's output for [batch, T, width], in the same shape."""
        x = x + self.attention(self.attn_norm(x), cos, sin)
        y = self.ffn_norm(x)
        output: Tensor = x + self.ffn_down(functional.silu(self.ffn_gate(y)) * self.ffn_up(y))
        return output

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return causal attention over [batch, T, width], in the same shape."""
        heads = (*x.shape[:2], -1, self.shape.head_dim)
        q = rotate(self.attn_q(x).reshape(heads).transpose(1, 2), cos, sin)
        k = rotate(self.attn_k(x).reshape(heads).transpose(1, 2), cos, sin)
        v = self.attn_v(x).reshape(heads).transpose(1, 2)
        group = self.shape.heads // self.shape.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        output: Tensor = self.attn_output(mixed.transpose(1, 2).flatten(-2))
        return output


class Network(nn.Module):
    """The whole model; the embedding table is also the output head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.width)
        self.blk = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.width, eps=shape.norm_epsilon)
        cos, sin = rope_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.cos: Tensor
        self.sin: Tensor
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                # As in GPT-2, matrices that write to the residual start smaller in deeper models.
                writes = name.endswith(("attn_output.weight", "ffn_down.weight"))
                nn.init.normal_(weight, std=INIT_STD / (2 * shape.layers) ** 0.5 if writes else INIT_STD)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [batch, T, vocabulary] for int64 tokens [batch, T]."""
        length = tokens.shape[1]
        x = self.token_embd(tokens)
        for layer in self.blk:
            x = layer(x, self.cos[:length], self.sin[:length])
        return functional.linear(self.output_norm(x), self.token_embd.weight)

    def loss(self, windows: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats per token; `windows` is int64 [batch, T + 1]."""
        logits = self(windows[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten())

    def parameter_count(self) -> int:
        """Return the number of trained parameters."""
        return sum(weight.numel() for weight in self.parameters())
