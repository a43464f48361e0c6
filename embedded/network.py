"""The demo model's network in torch, and hybrids of the same sizes.

Modules have the names of GGUF tensors, so a state dict has the same names as the file.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from anespec.embedded.layers import AttentionLayer, Layer, rope_tables
from anespec.embedded.recurrent_layers import RECURRENT_LAYERS
from anespec.embedded.shape import Shape

INIT_STD = 0.02

SMALLEST_MATRIX = 8
"""Weights with a shorter axis are not matrices: kernels of convolutions, and numbers by head."""

RESIDUAL_WRITERS = ("attn_output.weight", "ffn_down.weight", "ssm_out.weight", "out_proj.weight")


def is_matrix(weight: Tensor) -> bool:
    """Return whether a weight is a matrix, which is trained by Muon and stored as Q8_0."""
    return weight.dim() == 2 and min(weight.shape) >= SMALLEST_MATRIX


class Network(nn.Module):
    """The whole model; the embedding table is also the output head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.width)
        self.blk = nn.ModuleList(self._layer(index) for index in range(shape.layers))
        self.add_module(shape.style.final_norm, nn.RMSNorm(shape.width, eps=shape.norm_epsilon))
        cos, sin = rope_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.cos: Tensor
        self.sin: Tensor
        for name, weight in self.named_parameters():
            if is_matrix(weight):
                # As in GPT-2, matrices that write to the residual start smaller in deeper models.
                writes = name.endswith(RESIDUAL_WRITERS)
                nn.init.normal_(weight, std=INIT_STD / (2 * shape.layers) ** 0.5 if writes else INIT_STD)

    def _layer(self, index: int) -> Layer:
        kind = AttentionLayer if self.shape.attends(index) else RECURRENT_LAYERS[self.shape.architecture]
        return kind(self.shape)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [batch, T, vocabulary] for int64 tokens [batch, T]."""
        length = tokens.shape[1]
        x = self.token_embd(tokens)
        for layer in self.blk:
            x = layer(x, self.cos[:length], self.sin[:length])
        final_norm = getattr(self, self.shape.style.final_norm)
        return functional.linear(final_norm(x), self.token_embd.weight)

    def loss(self, windows: Tensor, teacher: "Network | None" = None) -> Tensor:
        """Return the mean cross-entropy in nats per token; `windows` is int64 [batch, T + 1].

        With a teacher it is that of the teacher's probabilities, which say more of a text than its tokens.
        """
        logits = self(windows[:, :-1]).flatten(0, 1).float()
        if teacher is None:
            return functional.cross_entropy(logits, windows[:, 1:].flatten())
        with torch.no_grad():
            wanted = teacher(windows[:, :-1]).flatten(0, 1).float().softmax(-1)
        return functional.cross_entropy(logits, wanted)

    def parameter_count(self) -> int:
        """Return the number of trained parameters."""
        return sum(weight.numel() for weight in self.parameters())

    @torch.no_grad()
    def start_from(self, teacher: "Network") -> None:
        """Take over the weights of a `llama` of the same sizes, all that this network has, too."""
        style, weights = self.shape.style, dict(self.named_parameters())
        renamed = {"ffn_norm": style.mlp_norm, "output_norm": style.final_norm}
        for name, value in teacher.state_dict().items():
            *path, part, kind = name.split(".")
            own = weights.get(".".join([*path, renamed.get(part, part), kind]))
            if own is None:
                continue
            if part in ("attn_q", "attn_k") and style.neox:
                # Neighbours rotate together in a llama.
                half, width = self.shape.head_dim // 2, self.shape.width
                value = value.reshape(-1, half, 2, width).transpose(1, 2).reshape(-1, width)
            if part == "attn_q" and style.output_gate:
                queries = own.view(self.shape.heads, 2, self.shape.head_dim, -1)[:, 0]
                queries.copy_(value.view_as(queries))
            else:
                own.copy_(value)
