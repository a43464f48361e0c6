"""Messages over a socket: a length of four bytes, little-endian, then as many of one JSON object."""

import json
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

LARGEST = 16 << 20
"""The largest message in bytes; a longer one is an error of the sender."""

_LENGTH = struct.Struct("<I")
_AT_ONCE = 1 << 16

Message = Mapping[str, Any]


class FramingError(Exception):
    """The received bytes are not a message; nothing after them can be parsed either."""


class Connection:
    """One end of a socket pair. What came in part is kept, so that a reading may be begun again."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._received = bytearray()

    def send(self, message: Message, seconds: float) -> None:
        """Send one message.

        Raises:
            OSError: the other side is gone (or TimeoutError: it does not read). FramingError: it is too long.
        """
        content = json.dumps(message, separators=(",", ":")).encode()
        if len(content) > LARGEST:
            raise FramingError(f"a message of {len(content)} bytes is too long")
        self._socket.settimeout(seconds)
        self._socket.sendall(_LENGTH.pack(len(content)) + content)

    def receive(self, seconds: float) -> dict[str, Any]:
        """The next message.

        Raises:
            EOFError: the other end is closed.
            TimeoutError: none came in that time.
            OSError: the connection is broken.
            FramingError: what came is none.
        """
        until = time.monotonic() + seconds
        (length,) = _LENGTH.unpack(self._next(_LENGTH.size, until, take=False))
        if not 0 < length <= LARGEST:
            raise FramingError(f"a message of {length} bytes is announced")
        content = self._next(_LENGTH.size + length, until, take=True)[_LENGTH.size :]
        try:
            message = json.loads(content)
        except (ValueError, RecursionError):
            raise FramingError("a message is no JSON") from None
        if not isinstance(message, dict):
            raise FramingError("a message is no object")
        return message

    def close(self) -> None:
        """Close this end; the other sees it."""
        self._socket.close()

    def _next(self, count: int, until: float, *, take: bool) -> bytes:
        """The next bytes, which stay where they are unless they are to be taken."""
        while len(self._received) < count:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            more = self._socket.recv(_AT_ONCE)
            if not more:
                raise EOFError
            self._received += more
        found = bytes(self._received[:count])
        if take:
            del self._received[:count]
        return found
