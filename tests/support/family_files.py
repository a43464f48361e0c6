"""Random models of any family, of chosen sizes, written as GGUF by the files in tests/data/families.

A variant takes vocabulary and metadata from one of those files, overrides some keys, and draws tensors of
the shapes that follow. The same variant gives the same bytes every time. Nothing here comes from
`anespec.convert`, so that a mistake about a shape or a key there shows.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFWriter
from numpy.typing import NDArray
from tiny_model import add_value

FAMILIES = Path(__file__).parents[1] / "data" / "families"

Values = NDArray[np.float32]
Shape = tuple[int, ...]

PLAIN_MLP = {
    *("apertus", "arcee", "falcon", "gpt2", "nemotron", "nemotron_h", "nemotron_h_moe", "phi2", "starcoder2")
}
"""Architectures whose MLP has no gate; in the others a file without one has it fused with `ffn_up`."""

BESIDE_EXPERTS = {"gemma4"}
"""Architectures whose layers have a dense MLP and experts."""

ONE_PART = {"nemotron_h", "nemotron_h_moe"}
"""Architectures whose layers have Mamba 2, attention or an MLP alone."""

RECURRENT = {"falcon-h1", "granitehybrid", "mamba2", "qwen35", "qwen35moe", "qwen3next", *ONE_PART}
"""Architectures with Mamba 2 or gated delta nets."""

NORMS_EACH_HEAD = {"command-r", "stablelm"}
"""Architectures whose norms on q and k have weights for each head."""

GATES_HEADS = {"spark2_5"}
"""Architectures whose output gate has a number for each head."""

HEAD_SPREAD = 1.3
"""Logits of about this spread leave margins between the best tokens that fp16 does not blur."""

NORM_SPREAD, BIAS_SPREAD = 0.15, 0.1


@dataclass(frozen=True)
class Variant:
    """A model of the family of `base`, one of the files in tests/data/families.

    `keys` are those of the architecture, without its prefix, that differ; None leaves one out.
    `architecture` may be another than that of `base`. `tensors` maps patterns of tensor names to values
    instead of random ones, or to None where they are left out, and names that `base` does not have to True.
    """

    base: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Any] = field(default_factory=dict)
    architecture: str | None = None
    seed: int = 1

    @property
    def family(self) -> str:
        """What GGUF calls its architecture."""
        return self.architecture or _Base.read(self.base).architecture

    def write(self, path: Path) -> Path:
        """Write the GGUF; its weights are fp16 numbers in F32, which every implementation reads alike."""
        base, architecture = _Base.read(self.base), self.family
        metadata = base.metadata(architecture) | {
            f"{architecture}.{name}": value for name, value in self.keys.items()
        }
        writer = GGUFWriter(path, architecture)
        for key, value in metadata.items():
            if value is not None:
                add_value(writer, key, value)
        keys = {key.removeprefix(f"{architecture}."): value for key, value in metadata.items()}
        sizes = _Sizes(keys, architecture)
        for name, values in self._tensors(base, sizes).items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def prompt(self, count: int) -> list[int]:
        """Random token ids."""
        tokens = np.random.default_rng(self.seed).integers(3, _Base.read(self.base).vocabulary, size=count)
        return [int(token) for token in tokens]

    def _tensors(self, base: "_Base", sizes: "_Sizes") -> dict[str, Values]:
        rng = np.random.default_rng(self.seed)
        added = {name for name, value in self.tensors.items() if value is not None and "*" not in name}
        names = dict.fromkeys([*base.names(sizes), *sorted(added)])
        drawn: dict[str, Values] = {}
        fused = self.family not in PLAIN_MLP and not any(name.endswith("ffn_gate.weight") for name in names)
        for name in names:
            given = next((v for pattern, v in self.tensors.items() if fnmatch(name, pattern)), True)
            if given is None:
                continue
            shape = sizes.shape(name, base.vocabulary, fused)
            values = _draw(rng, name, shape, tied="output.weight" not in names)
            if given is not True:
                values = np.broadcast_to(np.asarray(given, np.float32), shape)
            drawn[name] = np.ascontiguousarray(values)
        return drawn


def louder(source: Path, folder: Path, ending: str, factor: np.floating[Any]) -> Path:
    """A copy of a file in which the numbers of all tensors whose names end so are multiplied."""
    path = folder / source.name
    path.write_bytes(source.read_bytes())
    for tensor in GGUFReader(path, "r+").tensors:
        if tensor.name.endswith(ending):
            tensor.data[:] *= factor
    return path


def with_number(path: Path, key: str, value: int) -> Path:
    """Replace the uint32 under a key of a GGUF in place, so that the key contradicts the tensors."""
    content = path.read_bytes()
    at = content.index(key.encode()) + len(key) + 4
    path.write_bytes(content[:at] + value.to_bytes(4, "little") + content[at + 4 :])
    return path


@dataclass(frozen=True)
class _Base:
    """What a variant takes from a file: metadata, and the roles of its tensors."""

    architecture: str
    fields: Mapping[str, Any]
    tensors: tuple[str, ...]
    vocabulary: int

    @classmethod
    @cache
    def read(cls, name: str) -> "_Base":
        reader = GGUFReader(FAMILIES / f"{name}.gguf")
        fields = {
            key: value.contents() for key, value in reader.fields.items() if not key.startswith("GGUF.")
        }
        tensors = tuple(tensor.name for tensor in reader.tensors)
        return cls(str(fields["general.architecture"]), fields, tensors, len(fields["tokenizer.ggml.tokens"]))

    def metadata(self, architecture: str) -> dict[str, Any]:
        own = f"{self.architecture}."
        return {
            f"{architecture}.{key.removeprefix(own)}" if key.startswith(own) else key: value
            for key, value in self.fields.items()
            if not key.startswith("general.")
        }

    def names(self, sizes: "_Sizes") -> Iterator[str]:
        """The tensors of a model of these sizes, with every role here in each layer that can have it."""
        roles = dict.fromkeys(name.split(".", 2)[2] for name in self.tensors if name.startswith("blk."))
        yield from (name for name in self.tensors if not name.startswith("blk."))
        for layer in range(sizes.layers):
            yield from (f"blk.{layer}.{role}" for role in roles if sizes.has(layer, role))


class _Sizes:
    """Shapes, as the metadata asks for them."""

    def __init__(self, keys: Mapping[str, Any], architecture: str) -> None:
        self.keys = keys
        self.architecture = architecture
        self.layers = int(keys["block_count"])
        self.d = int(keys["embedding_length"])

    def of(self, key: str, layer: int, default: int = 0) -> int:
        value = self.keys.get(key)
        value = default if value is None else value
        return int(value[layer] if isinstance(value, list) else value)

    def slides(self, layer: int) -> bool:
        """Whether the layer has head sizes of its own; only Gemma 4 has, with a pattern layer by layer."""
        pattern = self.keys.get("attention.sliding_window_pattern")
        return isinstance(pattern, list) and bool(pattern[layer])

    def has(self, layer: int, role: str) -> bool:
        """Whether a layer may have a tensor.

        In LFM2 those without KV heads have a convolution instead. The first layers of a mixture may be dense.
        """
        if role.startswith(("ffn_", "exp_probs_b")) and not role.startswith("ffn_norm"):
            experts = any(part in role for part in ("_exps", "_inp", "_shexp", "_latent", "exp_probs_b"))
            is_mixture = self.of("expert_count", 0) > 0 and layer >= self.of("leading_dense_block_count", 0)
            if experts is not is_mixture and self.architecture not in BESIDE_EXPERTS:
                return False
        if self.architecture in RECURRENT:
            return self._recurrent_has(layer, role)
        if role in ("attn_norm.weight", "attn_norm.bias") or not role.startswith(("attn_", "shortconv.")):
            return True
        return role.startswith("shortconv.") is (self.of("attention.head_count_kv", layer, 1) == 0)

    @property
    def has_delta_nets(self) -> bool:
        """Whether the model's recurrent layers are gated delta nets."""
        return self.architecture in ("qwen35", "qwen35moe", "qwen3next")

    def _recurrent_has(self, layer: int, role: str) -> bool:
        """Which of attention's, Mamba 2's or a delta net's, and an MLP's tensors a layer has."""
        if role.startswith(("attn_norm", "post_attention_norm")):
            return True
        kv, ff = self.of("attention.head_count_kv", layer), self.of("feed_forward_length", layer)
        delta = self.has_delta_nets and (layer + 1) % int(self.keys["full_attention_interval"]) != 0
        recurs = {"mamba2": True, "falcon-h1": True, "granitehybrid": kv == 0}
        recurs |= dict.fromkeys(("qwen35", "qwen35moe", "qwen3next"), delta)
        recurs |= dict.fromkeys(ONE_PART, kv == 0 and ff == 0)
        if role.startswith(("ssm_", "attn_qkv", "attn_gate")):
            return recurs[self.architecture]
        if role.startswith(("ffn_", "exp_probs_b")):
            return ff > 0
        return not delta and kv > 0

    def recurrent_shape(self, role: str) -> Shape | None:
        """The shape of a tensor of Mamba 2 or a delta net; None if it is neither's."""
        sizes = ("inner_size", "state_size", "time_step_rank", "group_count", "conv_kernel")
        inner, state, heads, groups, taps = (self.of(f"ssm.{name}", 0) for name in sizes)
        channels, delta, d = inner + 2 * groups * state, self.has_delta_nets, self.d
        shapes: dict[str, Shape] = {
            "ssm_in.weight": (inner + channels + heads, d),
            "ssm_conv1d.weight": (channels, taps),
            "ssm_conv1d.bias": (channels,),
            "ssm_dt.bias": (heads,),
            "ssm_a": (heads,) if delta else (heads, 1),
            "ssm_d": (heads, 1),
            "ssm_norm.weight": (state,) if delta else (groups, inner // max(groups, 1)),
            "ssm_out.weight": (d, inner),
            "ssm_alpha.weight": (heads, d),
            "ssm_beta.weight": (heads, d),
            "ssm_ba.weight": (2 * heads, d),
            "attn_qkv.weight": (channels, d),
            "attn_gate.weight": (inner, d),
        }
        return shapes.get(role) if self.architecture in RECURRENT else None

    def latent_shape(self, role: str) -> Shape | None:
        """The shape of a tensor of latent attention; None for models without it, and for other tensors."""
        latent, rank = (self.of(f"attention.{name}_lora_rank", 0) for name in ("kv", "q"))
        key, value = (self.of(f"attention.{name}_length_mla", 0) for name in ("key", "value"))
        heads, rotary, d = self.of("attention.head_count", 0), self.of("rope.dimension_count", 0), self.d
        shapes: dict[str, Shape] = {
            "attn_q.weight": (heads * key, d),
            "attn_q_a.weight": (rank, d),
            "attn_q_a_norm.weight": (rank,),
            "attn_q_b.weight": (heads * key, rank),
            "attn_kv_a_mqa.weight": (latent + rotary, d),
            "attn_kv_a_norm.weight": (latent,),
            "attn_k_b.weight": (heads, latent, key - rotary),
            "attn_v_b.weight": (heads, value, latent),
            "attn_kv_b.weight": (heads * (key - rotary + value), latent),
            "attn_output.weight": (d, heads * value),
        }
        return shapes.get(role) if latent else None

    def head_dim(self, layer: int) -> int:
        if not self.of("attention.head_count", layer):
            return 1
        head_dim = self.of("attention.key_length", layer, self.d // self.of("attention.head_count", layer))
        return self.of("attention.key_length_swa", layer, head_dim) if self.slides(layer) else head_dim

    def shape(self, name: str, vocabulary: int, fused_gate: bool) -> Shape:
        d, width = self.d, self.of("embedding_length_per_layer_input", 0)
        if not name.startswith("blk."):
            full = next((layer for layer in range(self.layers) if not self.slides(layer)), 0)
            pairs = self.of("rope.dimension_count", full, self.head_dim(full)) // 2
            shapes: dict[str, Shape] = {
                "token_embd.weight": (vocabulary, d),
                "output.weight": (vocabulary, d),
                "output.bias": (vocabulary,),
                "output_norm.weight": (d,),
                "output_norm.bias": (d,),
                "token_embd_norm.weight": (d,),
                "position_embd.weight": (self.of("context_length", 0), d),
                "rope_freqs.weight": (pairs,),
                "rope_factors_long.weight": (pairs,),
                "rope_factors_short.weight": (pairs,),
                "per_layer_token_embd.weight": (vocabulary, width * self.layers),
                "per_layer_model_proj.weight": (width * self.layers, d),
                "per_layer_proj_norm.weight": (width,),
            }
            return shapes[name]
        _, number, role = name.split(".", 2)
        layer = int(number)
        if (recurrent := self.recurrent_shape(role)) is not None:
            return recurrent
        if (latent := self.latent_shape(role)) is not None:
            return latent
        if role == "ffn_norm":
            return (d,)
        head_dim, ff = self.head_dim(layer), self.of("feed_forward_length", layer)
        q = self.of("attention.head_count", layer) * head_dim
        kv = self.of("attention.head_count_kv", layer, self.of("attention.head_count", layer)) * head_dim
        projections = {
            "attn_q": (2 * q if self.has_delta_nets else q, d),
            "attn_k": (kv, d),
            "attn_v": (kv, d),
            "attn_qkv": (q + 2 * kv, d),
            "attn_output": (d, q),
            "attn_gate": (q // head_dim if self.architecture in GATES_HEADS else q, d),
            "shortconv.in_proj": (3 * d, d),
            "shortconv.out_proj": (d, d),
            "shortconv.conv": (d, self.of("shortconv.l_cache", layer)),
            "ffn_gate": (ff, d),
            "ffn_up": (2 * ff if fused_gate else ff, d),
            "ffn_down": (d, ff),
            "inp_gate": (width, d),
            "proj": (d, width),
        }
        experts = self.of("expert_count", 0)
        if experts:
            own = self.of("expert_feed_forward_length", layer, ff)
            read = self.of("moe_latent_size", layer, d)
            several = own * self.of("expert_shared_count", layer, 1)
            shared = self.of("expert_shared_feed_forward_length", layer, several)
            projections |= {
                "ffn_gate_inp": (experts, d),
                "ffn_gate_exps": (experts, own, read),
                "ffn_up_exps": (experts, own, read),
                "ffn_down_exps": (experts, read, own),
                "ffn_latent_down": (read, d),
                "ffn_latent_up": (d, read),
                "ffn_gate_shexp": (shared, d),
                "ffn_up_shexp": (shared, d),
                "ffn_down_shexp": (d, shared),
                "ffn_gate_inp_shexp": (1, d),
                "exp_probs_b": (experts, 0),
            }
        role, kind = role.rsplit(".", 1)
        if role in projections:
            return projections[role] if kind == "weight" else projections[role][:-1]
        if role in ("attn_q_norm", "attn_k_norm"):
            channels = q if role == "attn_q_norm" else kv
            if self.architecture in NORMS_EACH_HEAD:
                return (channels // head_dim, head_dim)
            return (channels if self.architecture in ("olmo2", "olmoe") else head_dim,)
        if role == "attn_sinks":
            return (self.of("attention.head_count", layer),)
        return (1,) if role == "layer_output_scale" else (d,)


def _draw(rng: np.random.Generator, name: str, shape: Shape, tied: bool) -> Values:
    """Random values of a sensible spread, each an fp16 number."""
    values: NDArray[Any]
    if name.endswith(".ssm_a"):
        values = -np.exp(rng.uniform(-3, 1.5, shape))
    elif name.startswith("rope_f"):
        values = rng.uniform(1, 8, shape)
    elif name.endswith(".bias"):
        values = rng.normal(0, BIAS_SPREAD, shape)
    elif len(shape) == 1 or "_norm." in name:
        values = rng.normal(1, NORM_SPREAD, shape)
    elif name == "token_embd.weight" and not tied:
        values = rng.normal(0, 1, shape)
    else:
        spread = 1 if name.startswith("per_layer_token") else HEAD_SPREAD
        values = rng.normal(0, spread / math.sqrt(shape[-1]), shape)
    return values.astype(np.float16).astype(np.float32)
