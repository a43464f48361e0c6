"""Write a MIL program as an .mlpackage, and write each weight only once.

`ct.convert` and `save` would hold every weight of the shard in memory and copy the weight file twice. So the
program is passed to coremltools' exporter directly, with one change: large constants only get an offset in
the weight file. Their values are then computed, hashed, written and freed, piece by piece.
"""

import contextlib
import json
import struct
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anespec import __version__
from anespec.convert.graph.builder import (
    CoreMLProtoExporter,
    MILProtoExporter,
    Program,
    Var,
    ct,
    file_value,
)
from anespec.convert.graph.functions import ShardProgram
from anespec.convert.graph.placeholder import Placeholder
from anespec.convert.shard_units import partial_name
from anespec.convert.storage import storage_errors
from anespec.gguf.element_types import ElementType
from anespec.manifests.store import PackageDigest
from anespec.system.interrupts import interrupts_held_back
from anespec.system.safe_files import Folder

# The metadata are those of `ct.convert` except for the date, so that the same shard gives the same bytes.

SOURCE = "milinternal"
"""The source that `ct.convert` records for a program made with coremltools' own builder."""

_COREMLTOOLS = "com.github.apple.coremltools."
_ANESPEC = "anespec.version"


def sign(model: Any) -> None:
    """Record in the protobuf `model` of an ML program which tools made it."""
    metadata = model.description.metadata.userDefined
    metadata[f"{_COREMLTOOLS}source"] = SOURCE
    metadata[f"{_COREMLTOOLS}version"] = ct.__version__
    metadata[_ANESPEC] = __version__
    info = model.mlProgram.attributes["buildInfo"]
    strings = info.type.dictionaryType
    strings.keyType.tensorType.dataType = strings.valueType.tensorType.dataType = ElementType.STRING.mil
    for name, value in (("version", ct.__version__), (f"component-{SOURCE}", "")):
        entry = info.immediateValue.dictionary.values.add()
        _put_string(entry.key, f"coremltools-{name}")
        _put_string(entry.value, value)


def _put_string(value: Any, text: str) -> None:
    value.type.tensorType.dataType = ElementType.STRING.mil
    value.immediateValue.tensor.strings.values.append(text)


# A Core ML weight file is laid out before its values exist, and then written in order, piece by piece.
#
# coremltools' own writer takes whole constants, and its file would have to be read again for the hash.
# Format (version 2):
# https://github.com/apple/coremltools/blob/main/mlmodel/src/MILBlob/Blob/StorageFormat.hpp. It has a header,
# and then for each constant a header and the bytes, both at a multiple of 64.

ALIGNMENT = 64
VERSION = 2
SENTINEL = 0xDEADBEEF
HEADER = struct.Struct("<II56x")
"""The number of constants, and the version."""
BLOB_HEADER = struct.Struct("<IIQQQ32x")
"""Sentinel, type, number of bytes, offset of the bytes, and unused bits of the last byte."""

Chunks = Callable[[int], Iterable[NDArray[Any]]]
"""A callback that yields a constant's values in order, in several arrays; its argument: a number of threads.

All arrays but the last fill whole bytes.
"""


@dataclass(frozen=True)
class _Blob:
    element: ElementType
    count: int
    offset: int
    chunks: Chunks

    @property
    def nbytes(self) -> int:
        return self.element.nbytes((self.count,))

    @property
    def start(self) -> int:
        """The offset of the constant's bytes."""
        return self.offset + BLOB_HEADER.size

    @property
    def end(self) -> int:
        return self.start + self.nbytes

    def header(self) -> bytes:
        unused = 8 * self.nbytes - self.element.bits * self.count
        return BLOB_HEADER.pack(SENTINEL, self.element.blob, self.nbytes, self.start, unused)


class WeightFile:
    """The layout of a weight file: constants in the order in which they are added."""

    def __init__(self) -> None:
        self._blobs: list[_Blob] = []

    @property
    def nbytes(self) -> int:
        """The size of the file so far, in bytes."""
        return self._blobs[-1].end if self._blobs else HEADER.size

    def add(self, element: ElementType, count: int, chunks: Chunks) -> int:
        """Add a constant of `count` values; return the offset by which the model refers to it."""
        offset = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
        self._blobs.append(_Blob(element, count, offset, chunks))
        return offset

    def content(self, threads: int) -> Iterator[bytes | memoryview]:
        """Yield the bytes of the file; values are requested in order and freed after use.

        Raises:
            ValueError: a constant has another number of values than the one given to `add`.
        """
        yield HEADER.pack(len(self._blobs), VERSION)
        at = HEADER.size
        for blob in self._blobs:
            yield bytes(blob.offset - at) + blob.header()
            at = blob.start
            for values in blob.chunks(threads):
                data = packed(values.reshape(-1), blob.element.bits)
                at += data.nbytes
                yield data.data.cast("B")
            if at != blob.end:
                raise ValueError(f"a constant of {blob.nbytes} bytes got {at - blob.start}")


def packed(values: NDArray[Any], bits: int) -> NDArray[Any]:
    """Pack numbers of fewer than 8 bits into bytes, the first in the lowest bits; others stay unchanged."""
    if bits >= 8:
        return np.ascontiguousarray(values)
    whole = values.view(np.uint8)
    if bits == 4 and len(whole) % 2 == 0:
        return whole[0::2] & 15 | whole[1::2] << 4
    each = np.unpackbits(whole[:, None], axis=1, count=bits, bitorder="little")
    return np.packbits(each, bitorder="little")


AUTHOR = "com.apple.CoreML"
MODEL_FILE = f"{AUTHOR}/model.mlmodel"
WEIGHTS_FOLDER = f"{AUTHOR}/weights"
WEIGHTS_FILE = "weight.bin"

ELEMENTS: Mapping[np.dtype[Any], ElementType] = MappingProxyType(
    {each.dtype: each for each in (ElementType.INT8, ElementType.FP16, ElementType.FP32)}
)
"""The element types of large constants that are not weights."""

OnWritten = Callable[[int], None]
"""A callback for progress; its argument is the number of bytes of the weight file written since the last."""


@dataclass(frozen=True)
class WrittenPackage:
    """The size and the hash of a package, as `package_bytes` and `package_sha256` would return them."""

    bytes: int
    sha256: str


def write_package(
    shard: ShardProgram, path: Path, threads: int = 1, on_written: OnWritten = lambda _: None
) -> WrittenPackage:
    """Write `shard` to `path`, a folder that ends in .mlpackage; on failure there is no such folder.

    No coremltools pass runs on the graph, since the builder already emits the intended operations. The same
    shard gives the same bytes. `threads` threads compute the weights.

    Raises:
        StorageError: the disk is full, or the package cannot be written.
    """
    partial = partial_name(path)
    weights = WeightFile()
    with interrupts_held_back():
        model = _export(shard, weights)
    content = _reported(weights.content(threads), on_written)
    files = (
        _in_memory(f"Data/{MODEL_FILE}", model),
        _File(f"Data/{WEIGHTS_FOLDER}/{WEIGHTS_FILE}", weights.nbytes, content),
        _in_memory("Manifest.json", _package_manifest().encode()),
    )
    with storage_errors(path), Folder.open(path.parent, follow=False) as shards:
        shards.remove(partial)
        try:
            with shards.folder(partial, create=True) as package:
                written = _write(files, package)
            shards.remove(path.name)
            shards.rename(partial, path.name)
        finally:
            with contextlib.suppress(OSError):
                shards.remove(partial)
    return written


def serialised_model(shard: ShardProgram) -> bytes:
    """Return the model file of a shard's package; it refers to a weight file that is not written."""
    return _export(shard, WeightFile())


@dataclass(frozen=True)
class _File:
    relative: str
    size: int
    content: Iterable[bytes | memoryview]


def _reported(content: Iterable[bytes | memoryview], on_written: OnWritten) -> Iterator[bytes | memoryview]:
    """Yield the same content; after each piece call `on_written` with its size."""
    for piece in content:
        yield piece
        on_written(len(piece))


def _in_memory(relative: str, content: bytes) -> _File:
    return _File(relative, len(content), (content,))


def _write(files: Iterable[_File], package: Folder) -> WrittenPackage:
    """Write files, which come in the order of `package_files`; return the package's size and hash."""
    digest = PackageDigest()
    for file in files:
        digest.begin(file.relative, file.size)
        with package.create(file.relative) as stream:
            for content in file.content:
                digest.update(content)
                stream.write(content)
    return WrittenPackage(digest.bytes, digest.hexdigest())


def _export(shard: ShardProgram, weights: WeightFile) -> bytes:
    """Return the serialised model; add its large constants to `weights`."""
    version = int(ct.target.iOS18)
    exporter = _Exporter(shard.program, weights, version)
    described = CoreMLProtoExporter(
        shard.program, exporter.export(), None, None, None, "mlprogram", SOURCE, version
    )
    model = described.export(version)
    sign(model)
    serialised: bytes = model.SerializeToString(deterministic=True)
    return serialised


class _Exporter(MILProtoExporter):
    """coremltools' exporter, except that large constants are written later.

    A constant with the same name and values as in an earlier function is stored only once.
    """

    def __init__(self, program: Program, weights: WeightFile, version: int) -> None:
        super().__init__(program, "", version)
        self._weights = weights
        self._places: dict[tuple[str, Hashable], int] = {}

    def get_milproto_value(self, var: Var) -> Any:
        """Return a constant's value; a placeholder's values are always in the weight file."""
        if isinstance(var.val, Placeholder):
            return self._reserve(var, var.val.values, var.val.element, var.val.chunks)
        return super().get_milproto_value(var)

    def create_file_value(self, var: Var) -> Any:
        """Return a reference to a large constant that is not a placeholder, such as a norm or a table."""
        values = (var.val.shape, var.val.dtype.str, var.val.tobytes())
        return self._reserve(var, values, ELEMENTS[var.val.dtype], lambda _: (var.val,))

    def _reserve(self, var: Var, values: Hashable, element: ElementType, chunks: Chunks) -> Any:
        """Return a reference to the place of `var` in the weight file; add it there if it is new."""
        place = (var.name, values)
        if place not in self._places:
            self._places[place] = self._weights.add(element, var.val.size, chunks)
        return file_value(var, self._places[place], f"@model_path/weights/{WEIGHTS_FILE}")


def _package_manifest() -> str:
    """Return the Manifest.json of a package: byte for byte what coremltools writes when it opens a package.

    So the keys are sorted and the file ends with a newline. The identifiers are the same in all packages.
    """
    items = {
        str(uuid.uuid5(uuid.NAMESPACE_URL, path)).upper(): {
            "author": AUTHOR,
            "description": description,
            "name": path.rpartition("/")[2],
            "path": path,
        }
        for path, description in (
            (MODEL_FILE, "CoreML Model Specification"),
            (WEIGHTS_FOLDER, "CoreML Model Weights"),
        )
    }
    root = next(identifier for identifier, item in items.items() if item["path"] == MODEL_FILE)
    manifest = {"fileFormatVersion": "1.0.0", "itemInfoEntries": items, "rootModelIdentifier": root}
    return json.dumps(manifest, indent=4, sort_keys=True) + "\n"
