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
        sizes = _Sizes(keys, norms_every_head=architecture == "olmo2")
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
        names = dict.fromkeys([*base.names(sizes.layers), *sorted(added)])
        drawn: dict[str, Values] = {}
        fused = not any(name.endswith("ffn_gate.weight") for name in names)
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

    def names(self, layers: int) -> Iterator[str]:
        """The tensors of a model of so many layers, each with every role that any layer here has."""
        roles = dict.fromkeys(name.split(".", 2)[2] for name in self.tensors if name.startswith("blk."))
        yield from (name for name in self.tensors if not name.startswith("blk."))
        yield from (f"blk.{layer}.{role}" for layer in range(layers) for role in roles)


class _Sizes:
    """Shapes, as the metadata asks for them."""

    def __init__(self, keys: Mapping[str, Any], norms_every_head: bool) -> None:
        self.keys = keys
        self.norms_every_head = norms_every_head
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

    def head_dim(self, layer: int) -> int:
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
        head_dim, ff = self.head_dim(layer), self.of("feed_forward_length", layer)
        q = self.of("attention.head_count", layer) * head_dim
        kv = self.of("attention.head_count_kv", layer, self.of("attention.head_count", layer)) * head_dim
        projections = {
            "attn_q": (q, d),
            "attn_k": (kv, d),
            "attn_v": (kv, d),
            "attn_qkv": (q + 2 * kv, d),
            "attn_output": (d, q),
            "ffn_gate": (ff, d),
            "ffn_up": (2 * ff if fused_gate else ff, d),
            "ffn_down": (d, ff),
            "inp_gate": (width, d),
            "proj": (d, width),
        }
        role, kind = role.rsplit(".", 1)
        if role in projections:
            return projections[role] if kind == "weight" else projections[role][:1]
        every = self.norms_every_head
        head_norms = {"attn_q_norm": q if every else head_dim, "attn_k_norm": kv if every else head_dim}
        return (1,) if role == "layer_output_scale" else (head_norms.get(role, d),)


def _draw(rng: np.random.Generator, name: str, shape: Shape, tied: bool) -> Values:
    """Random values of a sensible spread, each an fp16 number."""
    values: NDArray[Any]
    if name.startswith("rope_f"):
        values = rng.uniform(1, 8, shape)
    elif name.endswith(".bias"):
        values = rng.normal(0, BIAS_SPREAD, shape)
    elif len(shape) == 1:
        values = rng.normal(1, NORM_SPREAD, shape)
    elif name == "token_embd.weight" and not tied:
        values = rng.normal(0, 1, shape)
    else:
        spread = 1 if name.startswith("per_layer_token") else HEAD_SPREAD
        values = rng.normal(0, spread / math.sqrt(shape[1]), shape)
    return values.astype(np.float16).astype(np.float32)
