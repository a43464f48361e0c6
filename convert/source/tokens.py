"""Write tokens.gguf: the source's vocabulary, chat template and embedding tables, unchanged."""

from pathlib import Path
from typing import BinaryIO

import numpy as np
from gguf import GGUFValueType, GGUFWriter
from gguf.gguf_writer import WriterState

from anespec.convert.source.facts import EMBEDDING, POSITION_EMBEDDING
from anespec.convert.source.model import PER_LAYER_EMBEDDING
from anespec.gguf.container import GGUFFile
from anespec.gguf.mapped_file import NUMPY_TYPES
from anespec.system.errors import GGUFError
from anespec.system.safe_files import Folder

ITEM_TYPES = {np.dtype(name): GGUFValueType(code) for code, name in NUMPY_TYPES.items()}
PIECE_BYTES = 1 << 23
COPIED_PREFIXES = (
    "tokenizer.",
    "general.name",
    "general.license",
    "general.architecture",
    "general.sampling.",
)


def write_tokens(source: GGUFFile, path: Path) -> None:
    """Copy the tokenizer's and sampling keys, and the stored bytes of embedding tables, into a new GGUF.

    Raises:
        GGUFError: the source has no vocabulary.
        OSError: the file cannot be written.
        StorageError: `path` is a link.
    """
    if "tokenizer.ggml.tokens" not in source.metadata:
        raise GGUFError(f"{source.path}: has no vocabulary (tokenizer.ggml.tokens); use a GGUF that has one")
    with Folder.open(path.parent, follow=False) as folder:
        folder.remove(path.name)
        with folder.create(path.name) as stream:
            _write(source, stream)


def _write(source: GGUFFile, stream: BinaryIO) -> None:
    writer = GGUFWriter(None, source.text("general.architecture"))
    for key, value in source.metadata.items():
        if key == "general.architecture" or not key.startswith(COPIED_PREFIXES):
            continue
        match value:
            case bool():
                writer.add_bool(key, value)
            case int() if -(2**31) <= value < 2**31:
                (writer.add_uint32 if value >= 0 else writer.add_int32)(key, value)
            case int():
                (writer.add_uint64 if value >= 0 else writer.add_int64)(key, value)
            case float():
                writer.add_float64(key, value)
            case str():
                writer.add_string(key, value)
            case np.ndarray() if len(value):
                items = ITEM_TYPES[value.dtype]
                writer.add_key_value(key, value.tolist(), GGUFValueType.ARRAY, items)
            case list() if value:
                writer.add_array(key, value)
    tables = [name for name in (EMBEDDING, POSITION_EMBEDDING, PER_LAYER_EMBEDDING) if name in source.tensors]
    for name in tables:
        raw = source.raw(name)
        writer.add_tensor_info(name, raw.shape, raw.dtype, raw.nbytes, source.info(name).kind)
    # The writer would open the path itself, and follow a link there.
    writer.fout, writer.state = [stream], WriterState.EMPTY
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name in tables:
        writer.write_padding(stream, stream.tell())
        _copy(source, name, stream)
    writer.write_padding(stream, stream.tell())


def _copy(source: GGUFFile, name: str, stream: BinaryIO) -> None:
    """Copy a tensor's stored bytes in pieces: mapped as a whole, tables would take most of the memory."""
    raw = source.raw(name)
    step = max(1, PIECE_BYTES // raw.shape[1])
    for first in range(0, len(raw), step):
        stream.write(raw[first : first + step].data)
        source.forget(name)
