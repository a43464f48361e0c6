"""Import the draft memory's files of earlier versions into the database, and remove them.

    VOCABULARY/models.json          see used_models
    VOCABULARY/TENANT/snapshot      head, image, the latest requests
    VOCABULARY/TENANT/journal-N     head, and the later requests; journals are read in the order of N

Each file is MAGIC and records. A record is its kind (1 byte), the size of its content and a CRC-32 of all its
other bytes (4 bytes each, little endian), and its content. Reading ends at a damaged record.
"""

import contextlib
import re
import stat
import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum

import numpy as np
from pydantic import ValidationError

from anespec.manifests.schema import Index, Record
from anespec.runtime.drafters.memory.database import MAX_UNLEARNT_BYTES, MemoryDatabase
from anespec.runtime.drafters.memory.learner import MemoryFacts
from anespec.runtime.drafters.memory.request_record import TEXT_BYTES, LatestRequests, RequestRecord
from anespec.runtime.drafters.memory.tables import NAME_LENGTH, Number, Tenant, Weights
from anespec.system.errors import StorageError
from anespec.system.safe_files import Folder

MODELS_NAME = "models.json"

MAGIC = b"anespec memory 1\n"
MAX_FILE_BYTES = 1 << 31
"""The most bytes that are read of a file."""

_FRAME = struct.Struct("<BII")
_TENANT = re.compile(r"[0-9a-f]{32}")
_JOURNAL = re.compile(r"journal-(\d{6,9})")


class _Kind(IntEnum):
    HEAD = 1
    REQUEST = 2
    WEIGHTS = 3


class _Head(Record):
    vocabulary: str
    owner: str
    learner: str
    version: Index
    generation: Number = 0
    image_bytes: Number = 0
    image_crc: Number = 0
    text_bytes: Number = 0
    nodes: Number = 0
    room: Number = 0
    requests: Number = 0
    tokens: Number = 0


def old_tenants(folder: Folder) -> list[str]:
    """Return the keys of the tenants that have files in a vocabulary's folder."""
    names = filter(_TENANT.fullmatch, folder.names())
    return [name for name in names if stat.S_ISDIR(folder.mode(name) or 0)]


def take_over(folder: Folder, database: MemoryDatabase) -> None:
    """Move the content of the files in a vocabulary's folder to its database, and remove the files.

    If the database already has a tenant, only its files are removed: an earlier process was ended between the
    two steps.

    Raises:
        OSError, StorageError: a file or the database failed; nothing is lost.
    """
    for key in old_tenants(folder):
        with folder.folder(key) as files, database.at_once():
            if not database.position(Tenant(key, "")).tenant:
                _move(key, files, database)
        folder.remove(key)
    if folder.mode(MODELS_NAME) is not None:
        database.models = database.models or _content(folder, MODELS_NAME).decode(errors="replace")
        folder.remove(MODELS_NAME)


def _move(key: str, files: Folder, database: MemoryDatabase) -> None:
    head, rest = _opened(_content(files, "snapshot"))
    heads = [] if head is None else [head]
    size, generation = (0, 0) if head is None else (head.image_bytes, head.generation)
    contained, since, weights = LatestRequests(TEXT_BYTES), LatestRequests(MAX_UNLEARNT_BYTES), None
    for kind, content in _records(rest[size:]):
        if kind is _Kind.REQUEST and (request := _request(content)) is not None:
            contained.add(request)
    for name in sorted(filter(_JOURNAL.fullmatch, files.names()), key=lambda name: int(name[8:])):
        journal_head, journal = _opened(_content(files, name))
        if journal_head is None or int(name[8:]) < generation:
            continue
        heads.append(journal_head)
        for kind, content in _records(journal):
            if kind is _Kind.REQUEST and (request := _request(content)) is not None:
                since.add(request)
            if kind is _Kind.WEIGHTS:
                weights = Weights(journal_head.learner, journal_head.version, bytes(content))
    if not heads:
        return
    tenant = Tenant(key, heads[0].owner[:NAME_LENGTH])
    at, _ = database.add(tenant, contained.records)
    image = np.frombuffer(rest[:size], np.uint8)
    if head is not None and size and len(image) == size and zlib.crc32(image.data) == head.image_crc:
        facts = MemoryFacts(head.nodes, head.room, head.requests, head.tokens)
        database.save_image(image, at, head.learner, head.version, facts)
    database.add(tenant, since.records)
    if weights is not None:
        database.save_weights(tenant, weights)


def _content(folder: Folder, name: str) -> bytes:
    """Return the bytes of a file; no bytes if it is missing or is not a regular file."""
    try:
        return folder.read(name, MAX_FILE_BYTES)
    except (FileNotFoundError, IsADirectoryError, StorageError):
        return b""


def _opened(data: bytes) -> tuple[_Head | None, memoryview]:
    """Return the head of a file, None if it is damaged, and the bytes after it."""
    rest = memoryview(data)[len(MAGIC) :]
    if data.startswith(MAGIC):
        for kind, content in _records(rest):
            with contextlib.suppress(ValidationError):
                head = _Head.model_validate_json(bytes(content), strict=True)
                return (head if kind is _Kind.HEAD else None), rest[_FRAME.size + len(content) :]
            break
    return None, rest[:0]


def _records(data: memoryview) -> Iterator[tuple[_Kind, memoryview]]:
    while len(data) >= _FRAME.size:
        kind, size, checksum = _FRAME.unpack_from(data)
        content = data[_FRAME.size : _FRAME.size + size]
        found = zlib.crc32(content, zlib.crc32(struct.pack("<BI", kind, size)))
        if len(content) < size or found != checksum or kind not in set(_Kind):
            return
        yield _Kind(kind), content
        data = data[_FRAME.size + size :]


def _request(content: memoryview) -> RequestRecord | None:
    return RequestRecord.of_bytes(bytes(content[4:]), int.from_bytes(content[:4], "little"))
