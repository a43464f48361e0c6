"""Decide which parts each layer of a model has, from the family and a GGUF's metadata and tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from anespec.convert.families.family import Family, Recurrent
from anespec.gguf.container import GGUFFile
from anespec.system.errors import GGUFError

DELTA_INTERVAL = 4
"""Every layer of this number has attention, if the file does not say otherwise, as in llama.cpp."""


class Part(StrEnum):
    """A part that a layer may have; the values are those that errors name."""

    ATTENTION = "attention"
    CONVOLUTION = "a short convolution"
    SSD = "Mamba 2"
    DELTA_NET = "a gated delta net"
    MLP = "an MLP"


@dataclass(frozen=True)
class LayerParts:
    """The parts of a layer, with the number of its KV heads and the width of its MLP."""

    parts: frozenset[Part]
    kv_heads: int
    width: int


def read_parts(
    file: GGUFFile, family: Family, kv_heads: Sequence[int], widths: Sequence[int]
) -> list[LayerParts]:
    """Return the parts of every layer; `kv_heads` and `widths` are those of the metadata.

    Raises:
        GGUFError: the metadata contradicts itself or the tensors.
    """
    layers = list(enumerate(zip(kv_heads, widths, strict=True)))
    match family.recurrent:
        case Recurrent.ANY_PART:
            return [_alone(file, family, index, kv_heads, widths) for index, _ in layers]
        case Recurrent.DELTA_NET | Recurrent.GROUPED_DELTA_NET:
            recurs = _delta_layers(file, family, len(layers))
            of_layers = [{Part.DELTA_NET if recurrent else Part.ATTENTION, Part.MLP} for recurrent in recurs]
        case Recurrent.EVERY_LAYER:
            of_layers = [{Part.SSD} for _ in layers]
        case Recurrent.BESIDE_ATTENTION:
            of_layers = [{Part.ATTENTION, Part.SSD, Part.MLP} for _ in layers]
        case Recurrent.WITHOUT_KV:
            of_layers = [{Part.ATTENTION if heads else Part.SSD, Part.MLP} for _, (heads, _) in layers]
        case None:
            other = Part.CONVOLUTION if family.short_convolution else Part.ATTENTION
            of_layers = [{Part.ATTENTION if heads else other, Part.MLP} for _, (heads, _) in layers]
    return [
        LayerParts(frozenset(parts), heads, width)
        for parts, (_, (heads, width)) in zip(of_layers, layers, strict=True)
    ]


def _delta_layers(file: GGUFFile, family: Family, count: int) -> list[bool]:
    """Return which layers have a gated delta net."""
    key = f"{family.architecture}.attention.recurrent_layers"
    flags = file.metadata.get(key)
    if flags is None:
        interval = file.integer(f"{family.architecture}.full_attention_interval", DELTA_INTERVAL)
        if interval < 1:
            raise GGUFError(
                f"{file.path}: {family.architecture}.full_attention_interval is {interval}, but must be at "
                "least 1; the metadata is corrupt"
            )
        return [(index + 1) % interval != 0 for index in range(count)]
    if not isinstance(flags, np.ndarray) or flags.dtype.kind not in "biu" or len(flags) < count:
        raise GGUFError(f"{file.path}: {key!r} is not a list of {count} flags; the metadata is corrupt")
    return [bool(flag) for flag in flags[:count]]


def _alone(
    file: GGUFFile, family: Family, index: int, kv_heads: Sequence[int], widths: Sequence[int]
) -> LayerParts:
    """Return the only part of a layer, as its tensors say.

    The lists of KV heads and MLP widths of some files are zeros for all layers, so that they say nothing.
    Then the tensors say these sizes, too.

    Raises:
        GGUFError: the layer has no part, or the metadata says that it has another one.
    """
    of_tensor = {"ssm_in": Part.SSD, "attn_q": Part.ATTENTION, "ffn_up": Part.MLP, "ffn_up_exps": Part.MLP}
    shapes = {
        part: file.info(name).shape
        for role, part in of_tensor.items()
        if (name := f"blk.{index}.{role}.weight") in file.tensors
    }
    if len(shapes) != 1:
        raise GGUFError(
            f"{file.path}: layer {index} has {' and '.join(shapes) or 'no part'}, but needs exactly one of "
            f"{', '.join(dict.fromkeys(of_tensor.values()))}; the file is corrupt"
        )
    ((part, shape),) = shapes.items()
    if len(shape) < 2:
        raise GGUFError(
            f"{file.path}: {part} of layer {index} has a matrix of shape {shape}; the file is corrupt"
        )
    heads, width = kv_heads[index], widths[index]
    said = Part.MLP if width else Part.ATTENTION if heads else Part.SSD
    if not any(widths) and not any(kv_heads):
        said = part
        width = shape[-2] if part is Part.MLP else 0
        heads = _kv_heads(file, family, index) if part is Part.ATTENTION else 0
    if said is not part:
        raise GGUFError(
            f"{file.path}: layer {index} has {part}, but the metadata says that it has {said}; the file is "
            "corrupt"
        )
    return LayerParts(frozenset({part}), heads, width)


def _kv_heads(file: GGUFFile, family: Family, index: int) -> int:
    """Return the KV heads of a layer by the rows of its keys."""
    head_dim = file.integer(f"{family.architecture}.attention.key_length")
    return file.info(f"blk.{index}.attn_k.weight").shape[0] // (head_dim or 1)
