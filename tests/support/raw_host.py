"""A host of the worker, as small as the protocol allows (docs/worker.md)."""

import json
import mmap
import os
import socket
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from patience import PATIENCE

HEADER = 4096
ENTRY = 80
STEP = 16384

Tensor = NDArray[np.float16]


@dataclass
class RawArena:
    """An arena of the given entries' bytes; `patch` writes over the finished header and table."""

    sizes: Mapping[str, int]
    build: bytes = bytes(32)
    descriptor: int = field(init=False)

    def __post_init__(self) -> None:
        offset = STEP
        table = b""
        self.offsets: dict[str, int] = {}
        for name, size in self.sizes.items():
            table += struct.pack("<64sQQ", name.encode(), offset, size)
            self.offsets[name] = offset
            offset += -(-size // STEP) * STEP
        assert HEADER + len(table) <= STEP
        with tempfile.TemporaryFile() as file:
            file.truncate(offset)
            header = b"ANESPECA" + struct.pack(
                "<IIQ32sQII", 1, HEADER, offset, self.build, HEADER, len(self.sizes), ENTRY
            )
            file.write(header)
            file.seek(HEADER)
            file.write(table)
            file.flush()
            self.descriptor = os.dup(file.fileno())
        self.memory = mmap.mmap(self.descriptor, offset)

    def patch(self, at: int, data: bytes) -> None:
        """Write over some bytes."""
        self.memory[at : at + len(data)] = data

    def tensor(self, name: str, shape: Sequence[int]) -> Tensor:
        """A view of an entry."""
        count = int(np.prod(shape))
        return np.frombuffer(self.memory, np.float16, count, self.offsets[name]).reshape(shape)

    def close(self) -> None:
        """Let the file go; views of it keep its memory."""
        os.close(self.descriptor)


class RawWorker:
    """A worker process over shared memory."""

    def __init__(self, binary: Path, shared: RawArena, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(PATIENCE)
        self.socket = ours
        self.process = subprocess.Popen(
            [binary, "serve", "--socket", str(theirs.fileno()), "--arena", str(shared.descriptor)],
            pass_fds=(theirs.fileno(), shared.descriptor),
            env={"PATH": os.environ["PATH"], **environment},
        )
        theirs.close()
        self._next = 0

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """One message and its reply."""
        self._next += 1
        self.send(json.dumps({"id": self._next, "op": op, **fields}).encode())
        reply = self.receive()
        assert reply["id"] in (self._next, None)
        return reply

    def send(self, message: bytes) -> None:
        """One framed message."""
        self.socket.sendall(struct.pack("<I", len(message)) + message)

    def receive(self) -> dict[str, Any]:
        """One reply."""
        (count,) = struct.unpack("<I", self._read(4))
        reply: dict[str, Any] = json.loads(self._read(count))
        return reply

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def close(self) -> int:
        """Close the socket; the exit status."""
        self.socket.close()
        return self.process.wait(PATIENCE)
