"""Open HTTP connections with limits on the size of an answer's head and chunks, and on its slowness."""

import contextlib
import io
import os
import re
import socket
import ssl
import string
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPMessage,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
)
from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from anespec import __version__
from anespec.models.url.name import host_of, is_private, is_this_machine, shown_url
from anespec.system.errors import AnespecError, StorageError
from anespec.system.formatting import LONGEST_REASON, printable, quoted

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

PATIENCE_SECONDS = 30.0
"""The longest time without a byte from the server."""

LEAST_BYTES, LEAST_SECONDS = 60_000, 60.0
"""A connection that brings fewer than LEAST_BYTES in LEAST_SECONDS counts as broken. No connection in use is
slower than this, 1 kB/s."""

LONGEST_HEAD = 1 << 18
"""The most bytes before a file: status, headers, and interim answers (1xx)."""

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
        """Take the arguments of http.client.HTTPResponse."""
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
        # Python's own reader accepts -1 as a chunk's size, and then reads without end.
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
    """A stream that reads from a connection, and raises an error if the server is too slow or the answer's
    head too long."""

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
            raise TimeoutError("the server sends too slowly")
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
    """Return the TLS context: the certificates that the environment names, else the system's.

    Python on a Mac may have none of its own.
    """
    if not {"SSL_CERT_FILE", "SSL_CERT_DIR"} & set(os.environ):
        # huggingface_hub before 2.0 does not install truststore.
        with contextlib.suppress(ImportError):
            import truststore

            return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return ssl.create_default_context()


def open_url(
    url: str, headers: Mapping[str, str], *, method: str = "GET", patience: float = PATIENCE_SECONDS
) -> Response:
    """Send a request to an http or https URL and return the answer, whatever its status.

    Redirects are not followed. The caller closes the answer, even if it was not read.

    The request goes through the proxy that the environment names, unless the server runs on this machine.

    Raises:
        OSError, HTTPException, ValueError: the connection failed, or the answer's head is malformed.
    """
    said = {"User-Agent": f"anespec/{__version__}", "Accept-Encoding": "identity", **headers}
    opener = OpenerDirector()
    for handler in (ProxyHandler({} if is_this_machine(url) else None), _Plain(), _Encrypted()):
        opener.add_handler(handler)
    found = opener.open(Request(url, headers=said, method=method), timeout=patience)
    assert isinstance(found, Response)
    return found


# Ask an HTTP server for a file; redirects never lead from an encrypted address to a plain one.

ANSWERS = (200, 206, 304, 416)
"""Status codes that are valid answers to these requests."""

MOST_REDIRECTS = 10

_LENGTH = re.compile(r"[0-9]{1,15}")
_RANGE = re.compile(r"bytes ([0-9]{1,15})-[0-9]{1,15}/([0-9]{1,15})")
_VALIDATOR = re.compile(r"[ -~]{1,1000}")
_LINKED_HASH = re.compile(r'"?([0-9a-f]{64})"?')


class Unreachable(AnespecError):  # noqa: N818 (what it says, its cause is the error)
    """The server was not reached, or closed the connection before it answered."""


class Refused(AnespecError):  # noqa: N818
    """The server does not give the file."""


@dataclass(frozen=True)
class Answer:
    """A server's response. `linked_sha256` is the file's hash, if a hub gave one in a redirect."""

    status: int
    headers: HTTPMessage
    linked_sha256: str | None
    _response: Response

    @property
    def etag(self) -> str | None:
        """Return the ETag, which identifies this version of the file."""
        return self._validator("ETag")

    @property
    def modified(self) -> str | None:
        """Return the time of the file's last change, in the server's words."""
        return self._validator("Last-Modified")

    def _validator(self, header: str) -> str | None:
        """Return a header to send back to the server; None if it is not one line of ASCII."""
        said = self.headers.get(header, "")
        return said if _VALIDATOR.fullmatch(said) else None

    @property
    def first(self) -> int | None:
        """Return the offset in bytes where a partial response begins in the file; None if it is not
        partial."""
        found = self._range
        return None if found is None else int(found[1])

    @property
    def whole(self) -> int | None:
        """Return the size of the whole file in bytes; None if the server does not say."""
        if (found := self._range) is not None:
            return int(found[2])
        return None if self._response.chunked else _length(self.headers)

    @property
    def _range(self) -> re.Match[str] | None:
        return _RANGE.fullmatch(self.headers.get("Content-Range", ""))

    def pieces(self, size: int) -> Iterator[bytes]:
        """Return the content, in pieces of `size` bytes at most; raise Broken if the connection breaks."""
        return self._response.pieces(size)


@contextlib.contextmanager
def ask(url: str, headers: Mapping[str, str], allow_http: bool) -> Iterator[Answer]:
    """Send a request, follow redirects, and yield the response, which can be read inside the block.

    Raises:
        Unreachable: there is no connection, or the server reports an error of its own.
        Refused: there is no such file, or it is not public.
        StorageError: a redirect leads to an address that is not followed, or the answer is invalid.
    """
    place, linked = url, None
    for _ in range(MOST_REDIRECTS + 1):
        with contextlib.closing(_asked(url, place, headers)) as response:
            status, found = response.status, response.headers
            if status not in REDIRECTS or "Location" not in found:
                if status not in ANSWERS:
                    raise _refusal(url, status)
                _require_length(url, found)
                yield Answer(status, found, linked, response)
                return
        if hub := _LINKED_HASH.fullmatch(found.get("X-Linked-Etag", "")):
            linked = hub[1]
        place = _next_place(place, found["Location"], allow_http)
    raise StorageError(f"{shown_url(url)}: redirects more than {MOST_REDIRECTS} times; check the URL")


def _asked(url: str, place: str, headers: Mapping[str, str]) -> Response:
    try:
        return open_url(place, headers)
    except (HTTPException, OSError, ValueError) as error:
        raise Unreachable(
            f"{shown_url(url)}: cannot be reached ({_reason(error)}); check the connection"
        ) from None


def _next_place(place: str, said: str, allow_http: bool) -> str:
    """Return the target of a redirect; raise StorageError if it must not be followed."""
    try:
        # http.client reads headers as Latin-1, whatever their encoding is.
        target = urljoin(place, quote(said, safe=string.punctuation, encoding="iso-8859-1"))
        is_plain = urlsplit(target).scheme == "http"
    except ValueError:
        target, is_plain = said, False
    is_downgrade = is_plain and urlsplit(place).scheme != "http"
    is_followed = is_private(target) or (is_plain and allow_http and host_of(target) is not None)
    if is_downgrade or not is_followed:
        raise StorageError(
            f"{shown_url(place)}: redirects to {quoted(shown_url(target))}, which is not followed; give a "
            "URL that stays encrypted"
        )
    return target


def _length(headers: HTTPMessage) -> int | None:
    said = headers.get("Content-Length")
    return int(said) if said is not None and _LENGTH.fullmatch(said) else None


def _require_length(url: str, headers: HTTPMessage) -> None:
    """Raise StorageError if the length is not a valid one."""
    if "Content-Length" in headers and _length(headers) is None:
        raise StorageError(
            f"{shown_url(url)}: the server says {quoted(headers['Content-Length'], 20)} for the file's "
            "length; try later, or give another URL"
        )


def _refusal(url: str, status: int) -> AnespecError:
    shown = shown_url(url)
    if status in (401, 403):
        return Refused(
            f"{shown}: the server requires a login (status {status}); for the Hugging Face hub write "
            "hf:OWNER/REPO/FILE.gguf, which takes HF_TOKEN"
        )
    if status in (404, 410):
        return Refused(f"{shown}: there is no such file (status {status}); check the URL")
    if status >= 500 or status == 429:
        return Unreachable(f"{shown}: the server answers with status {status}; try again later")
    return StorageError(f"{shown}: the server answers with status {status}, which gives no file")


def _reason(error: Exception) -> str:
    cause = getattr(error, "reason", error)
    if isinstance(cause, ssl.SSLError):
        return printable(f"its certificate is not trusted: {cause.reason or cause}", LONGEST_REASON)
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return printable(text or type(cause).__name__, LONGEST_REASON)
