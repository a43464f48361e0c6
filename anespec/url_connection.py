"""HTTP connections with limits on an answer's head, on the size of its chunks, and on its slowness."""

import contextlib
import io
import os
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from typing import TYPE_CHECKING
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from anespec import __version__
from anespec.url_name import is_this_machine

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PATIENCE_SECONDS = 30.0
"""The longest time without a byte from the server."""

LEAST_BYTES, LEAST_SECONDS = 60_000, 60.0
"""A connection that brings fewer bytes in that time counts as broken: 1 kB/s is slower than any in use."""

LONGEST_HEAD = 1 << 18
"""Bytes of all that comes before a file: status, headers, and answers that only announce another."""

LONGEST_CHUNK_LINE = 1 << 12

REDIRECTS = (301, 302, 303, 307, 308)

_CHUNK = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?\r?\n")


class Broken(Exception):  # noqa: N818
    """The connection broke during an answer, or was far too slow."""


class Response(HTTPResponse):
    """A server's answer, read in pieces of bounded size."""

    def __init__(
        self, sock: socket.socket, debuglevel: int = 0, method: str | None = None, url: str | None = None
    ) -> None:
        """As http.client makes one."""
        super().__init__(sock, debuglevel, method, url)
        self._watched = _Watched(self.fp.detach())
        self.fp = io.BufferedReader(self._watched)

    def begin(self) -> None:
        """Read the head."""
        super().begin()
        self._watched.head_left = None

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield the body, in pieces of `size` bytes at most.

        Raises:
            Broken: the connection breaks or is too slow, or the body is malformed.
        """
        try:
            if self.chunked:
                yield from self._chunks(size)
            else:
                while piece := self.read(size):
                    yield piece
        except (HTTPException, OSError, ValueError):
            raise Broken from None

    def _chunks(self, size: int) -> Iterator[bytes]:
        # Python's own reader takes -1 for a chunk's size, and then reads without end.
        while left := self._chunk_size():
            while left:
                piece = self.fp.read(min(size, left))
                if not piece:
                    raise IncompleteRead(b"", left)
                left -= len(piece)
                yield piece
            if self.fp.readline(2) not in (b"\r\n", b"\n"):
                raise HTTPException("a chunk is longer than its size")

    def _chunk_size(self) -> int:
        found = _CHUNK.fullmatch(self.fp.readline(LONGEST_CHUNK_LINE))
        if found is None:
            raise HTTPException("a chunk has no size")
        return int(found[1], 16)


class _Watched(io.RawIOBase):
    """Reads from a connection; raises if the server is too slow, or if the head of its answer is too long."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw
        self._came = 0
        self._waited = 0.0
        self.head_left: int | None = LONGEST_HEAD

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        began = time.monotonic()
        count = self._raw.readinto(buffer) or 0
        self._waited += time.monotonic() - began
        self._came += count
        if self._came >= LEAST_BYTES:
            self._came, self._waited = 0, 0.0
        elif count and self._waited > LEAST_SECONDS:
            raise TimeoutError("too little comes")
        if self.head_left is not None:
            self.head_left -= count
            if self.head_left < 0:
                raise HTTPException("the head of its answer does not end")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Connection(HTTPConnection):
    response_class = Response


class _SecureConnection(HTTPSConnection):
    response_class = Response


class _Plain(HTTPHandler):
    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_Connection, req)


class _Encrypted(HTTPSHandler):
    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_SecureConnection, req, context=_trusted())


def _trusted() -> ssl.SSLContext:
    """Trust the certificates that a person names, or else the system's: Python on a Mac may know none."""
    if not {"SSL_CERT_FILE", "SSL_CERT_DIR"} & set(os.environ):
        # A huggingface_hub before 2.0 brings no truststore.
        with contextlib.suppress(ImportError):
            import truststore

            return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return ssl.create_default_context()


def open_url(
    url: str, headers: Mapping[str, str], *, method: str = "GET", patience: float = PATIENCE_SECONDS
) -> Response:
    """Send a request to an http or https URL and return the answer, whatever its status; redirects are not
    followed. The caller closes the answer, even if it was not read.

    The request goes through the proxy that the environment names, unless the server runs on this machine.

    Raises:
        OSError, HTTPException, ValueError: there is no connection, or the answer's head is malformed.
    """
    said = {"User-Agent": f"anespec/{__version__}", "Accept-Encoding": "identity", **headers}
    opener = OpenerDirector()
    for handler in (ProxyHandler({} if is_this_machine(url) else None), _Plain(), _Encrypted()):
        opener.add_handler(handler)
    found = opener.open(Request(url, headers=said, method=method), timeout=patience)
    assert isinstance(found, Response)
    return found
