"""Write the first layers of a GGUF as a GGUF, from which a probe is converted."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.gguf_reader import ReaderField

from anespec.convert.options import ConvertOptions
from anespec.convert.planning.plan import ConversionPlan
from anespec.convert.source.model import SourceModel
from anespec.gguf.container import GGUFFile
from anespec.gguf.parts import part_paths
from anespec.manifests.schema import Target
from anespec.system.errors import AnespecError, StorageError

LAYER = "blk."
NOT_COPIED = ("GGUF.", "general.architecture", "split.")
"""The prefixes of keys that the writer adds itself, and of those of a part."""

PER_LAYER = (
    "attention.head_count",
    "attention.head_count_kv",
    "attention.sliding_window_pattern",
    "feed_forward_length",
)
"""Keys, after the architecture's name, that may hold a value for each layer."""


def write_first_layers(source: Path, layers: int, path: Path) -> Path:
    """Copy a GGUF with only its first layers; every tensor keeps its type.

    `source` was read before and is taken as valid. If tensors of the whole model hold something for every
    layer, as per-layer embeddings do, the written model is not valid, and reading it fails.

    Raises:
        StorageError: the file cannot be written.
    """
    readers = [GGUFReader(part) for part in part_paths(source)]
    reader = readers[0]
    architecture = str(reader.fields["general.architecture"].contents())
    writer = GGUFWriter(path, architecture)
    try:
        for field in _copied(reader):
            value = _first_of(field, architecture, layers)
            kind, *inner = field.types
            writer.add_key_value(field.name, value, kind, inner[0] if inner else None)
        tensors = [tensor for part in readers for tensor in part.tensors if _layer_of(tensor.name) < layers]
        for tensor in tensors:
            writer.add_tensor_info(
                tensor.name, tensor.data.shape, tensor.data.dtype, tensor.data.nbytes, tensor.tensor_type
            )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in tensors:
            writer.write_tensor_data(tensor.data)
        writer.close()
    except OSError as error:
        path.unlink(missing_ok=True)
        raise StorageError(
            # NumPy's own error says how much it wrote, and has no errno.
            f"{path}: {error.strerror or error}; make room, or choose another folder with --work"
        ) from error
    return path


def first_layers(
    source: Path, layers: int, total: int, place: Callable[[int], Path], target: Target
) -> tuple[Path, int]:
    """Return a GGUF of `layers` of the `total` layers, or of the fewest more that make a valid model.

    `place` returns the path for a number of layers. At the end it is the whole model. Raises like
    write_first_layers.
    """
    for count in range(layers, total):
        path = place(count)
        if path.exists() and _plans(path, target):
            return path, count
        write_first_layers(source, count, path)
        if _plans(path, target):
            return path, count
        path.unlink()
    return source, total


def _plans(gguf: Path, target: Target) -> bool:
    try:
        with GGUFFile(gguf) as file:
            ConversionPlan(SourceModel(file), ConvertOptions(target=target))
    except AnespecError:
        return False
    return True


def _copied(reader: GGUFReader) -> Iterator[ReaderField]:
    for field in reader.fields.values():
        if not field.name.startswith(NOT_COPIED):
            yield field


def _first_of(field: ReaderField, architecture: str, layers: int) -> Any:
    """Return a key's value for fewer layers."""
    value = field.contents()
    name = field.name.removeprefix(f"{architecture}.")
    if name == "block_count":
        return layers
    if name in PER_LAYER and field.types[0] is GGUFValueType.ARRAY:
        return value[:layers]
    return np.asarray(value).tolist() if isinstance(value, np.ndarray) else value


def _layer_of(tensor: str) -> int:
    """Return the layer of a tensor; -1 for one of the whole model."""
    number = tensor.removeprefix(LAYER).partition(".")[0]
    return int(number) if tensor.startswith(LAYER) and number.isdecimal() else -1
