"""Asking an HTTP server for a file, over redirects that never lead from an encrypted place to a plain one."""

import contextlib
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from anespec import __version__
from anespec.manifests.errors import AnespecError, StorageError
from anespec.manifests.formatting import LONGEST_REASON, printable, quoted
from anespec.url_name import is_private

PATIENCE_SECONDS = 30.0
"""Without a byte."""

ANSWERS = (304, 416)
"""Status codes other than success that are valid answers."""

_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})")
_LINKED = re.compile(r'"?([0-9a-f]{64})"?')


class Unreachable(AnespecError):  # noqa: N818 (what it says, its cause is the error)
    """The server was not reached, or broke off before it answered."""


class Refused(AnespecError):  # noqa: N818
    """The server does not give the file."""


@dataclass(frozen=True)
class Answer:
    """A server's response. `linked_sha256` is the file's hash, if a hub gave one in a redirect."""

    status: int
    headers: Mapping[str, str]
    linked_sha256: str | None
    _stream: IO[bytes]

    @property
    def etag(self) -> str | None:
        """The mark of this version of the file."""
        return self.headers.get("ETag")

    @property
    def modified(self) -> str | None:
        """When the file was changed, as the server writes it."""
        return self.headers.get("Last-Modified")

    @property
    def first(self) -> int | None:
        """The offset in the file at which a partial response begins, in bytes; None if the response is not
        partial."""
        found = self._range
        return None if found is None else int(found[1])

    @property
    def whole(self) -> int | None:
        """Bytes of the whole file; None where the server does not say."""
        if (found := self._range) is not None:
            return int(found[2])
        length = self.headers.get("Content-Length", "")
        return int(length) if length.isascii() and length.isdecimal() else None

    @property
    def _range(self) -> re.Match[str] | None:
        return _RANGE.fullmatch(self.headers.get("Content-Range", ""))

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield the content, in pieces of `size` bytes at most; raise Broken if the connection breaks."""
        while piece := self._read(size):
            yield piece

    def _read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except (HTTPException, OSError):
            raise Broken from None


class Broken(Exception):  # noqa: N818
    """The connection broke in the midst of an answer."""


class _Redirects(HTTPRedirectHandler):
    """Follow redirects only to protected addresses, and record the facts that a hub gives in them."""

    def __init__(self, allow_http: bool) -> None:
        self.allow_http = allow_http
        self.linked: str | None = None

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        """The request to the new place; raises StorageError where it is none to go to."""
        from_plain = urlsplit(req.full_url).scheme == "http"
        is_plain = urlsplit(newurl).scheme == "http"
        if not (is_private(newurl) or (is_plain and self.allow_http)) or (is_plain and not from_plain):
            raise StorageError(
                f"{printable(req.full_url)}: leads on to {quoted(newurl)}, which is not followed; give a URL "
                "that stays encrypted"
            )
        if found := _LINKED.fullmatch(headers.get("X-Linked-Etag", "")):
            self.linked = found[1]
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextlib.contextmanager
def ask(url: str, headers: Mapping[str, str], allow_http: bool) -> Iterator[Answer]:
    """Open a request; the response can be read inside the block.

    Raises:
        Unreachable: there is no connection, or the server has troubles of its own.
        Refused: there is no such file, or it is not for everybody.
        StorageError: it leads to a place that is not followed, or answers what has no meaning.
    """
    redirects = _Redirects(allow_http)
    said = {"User-Agent": f"anespec/{__version__}", "Accept-Encoding": "identity", **headers}
    try:
        found: Any = build_opener(redirects).open(Request(url, headers=said), timeout=PATIENCE_SECONDS)
    except HTTPError as error:
        if error.code not in ANSWERS:
            error.close()
            raise _refusal(url, error.code) from None
        found = error
    except (URLError, HTTPException, OSError) as error:
        raise Unreachable(f"{url}: cannot be reached ({_reason(error)}); check the connection") from None
    with found:
        yield Answer(int(found.status), found.headers, redirects.linked, found)


def _refusal(url: str, status: int) -> AnespecError:
    if status in (401, 403):
        return Refused(
            f"{url}: the server gives it to some alone (status {status}); for the Hugging Face hub write "
            "hf:OWNER/REPO/FILE.gguf, which takes HF_TOKEN"
        )
    if status in (404, 410):
        return Refused(f"{url}: there is no such file (status {status}); check the URL")
    if status >= 500 or status == 429:
        return Unreachable(f"{url}: the server answers with status {status}; try again later")
    return StorageError(f"{url}: the server answers with status {status}, which gives no file")


def _reason(error: Exception) -> str:
    cause = getattr(error, "reason", error)
    if isinstance(cause, ssl.SSLError):
        return printable(f"its certificate is not trusted: {cause.reason or cause}", LONGEST_REASON)
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return printable(text or type(cause).__name__, LONGEST_REASON)
