"""Send requests to the Hugging Face hub, with limits on every answer.

`huggingface_hub` provides the hub's address, its cache folder, and the user's token. Its own requests are not
used: they take file names from unchecked headers, read whole answers and the bodies of redirects into memory,
and follow any number of pages.
"""

import contextlib
import re
import string
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException
from urllib.parse import quote, urljoin, urlsplit

from anespec.models.hub.name import HubName
from anespec.models.url.connection import REDIRECTS, Response, open_url
from anespec.system.errors import AnespecError, RequestError, StorageError
from anespec.system.formatting import LONGEST_REASON, printable, quoted

# Translate errors of the Hugging Face hub into this project's errors.

MAIN = "main"

_BAD_TOKEN = "Invalid credentials in Authorization header"


class HubUnreachable(StorageError):  # noqa: N818 (what it says, its cause is the error)
    """The hub cannot be reached."""


class NotThere(RequestError):  # noqa: N818
    """The hub says that the repository has no such revision."""


class NoSuchFile(NotThere):
    """The hub says that the revision has no such file."""


def refusal(name: HubName, status: int, headers: Message) -> AnespecError:
    """Return the error for a status of 400 or more, with the reason that the hub's headers give."""
    code = headers.get("X-Error-Code")
    if code == "GatedRepo":
        return RequestError(
            f"{name}: the repository is gated; accept its terms on the hub, and set HF_TOKEN to your token"
        )
    if code == "RevisionNotFound":
        return NotThere(f"{name}: the repository has no revision {name.revision or MAIN}")
    if code == "EntryNotFound":
        return NoSuchFile(f"{name}: the repository has no such file")
    if code == "RepoNotFound" or (status == 401 and headers.get("X-Error-Message") != _BAD_TOKEN):
        return RequestError(
            f"{name}: there is no such repository, or it is private; check the name, or set HF_TOKEN"
        )
    if status in (404, 410):
        return RequestError(f"{name}: the hub has no such file (status {status}); check the name")
    fix = "check HF_TOKEN" if status in (401, 403) else "try again later"
    return StorageError(f"{name}: the hub answers with status {status}; {fix}")


MOST_REDIRECTS = 8
MOST_TRIES = 3
"""The most requests for one answer if the hub is busy."""

RETRY_SECONDS = 1.0
PIECE_BYTES = 1 << 18

_BUSY_STATUSES = (429, 500, 502, 503, 504)
_NEXT = re.compile(r'<([^<>]*)>\s*;\s*rel="?next"?')


@dataclass(frozen=True)
class HubAnswer:
    """An answer of the hub, or of the store that it redirects to; `url` is the address that answered."""

    url: str
    status: int
    headers: Message
    _response: Response

    @property
    def next_page(self) -> str | None:
        """Return the address of a list's next page; None on the last page."""
        found = _NEXT.search(str(self.headers.get("Link", "")))
        return None if found is None else found[1]

    def pieces(self) -> Iterator[bytes]:
        """Return the body, in pieces of PIECE_BYTES at most; raise Broken if the connection breaks."""
        return self._response.pieces(PIECE_BYTES)

    def content(self, most: int) -> bytes | None:
        """Return the whole body, or None if it has more than `most` bytes; raise Broken as `pieces` does."""
        content = bytearray()
        for piece in self.pieces():
            content += piece
            if len(content) > most:
                return None
        return bytes(content)


def hub_url(path: str, revision: str, rest: str = "") -> str:
    """Return the address of `path` at a revision on the hub that HF_ENDPOINT names."""
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{path}/{quote(revision, safe='')}{quote(rest)}"


@contextlib.contextmanager
def ask_hub(
    name: HubName, url: str, *, head: bool = False, headers: Mapping[str, str] | None = None
) -> Iterator[HubAnswer]:
    """Send a request for `name` to the hub, follow redirects, and yield the answer.

    The body of a redirect is never read. The token is sent to the hub only. With `head`, the answer is the
    first one that has a file's hash, since the store behind the hub does not give the hash.

    Raises:
        HubUnreachable: there is no connection, or HF_HUB_OFFLINE forbids one.
        RequestError: the hub does not have it, or this user has no access to it.
        StorageError: the hub reports an error of its own, or redirects to an address that is not followed.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise HubUnreachable(f"{name}: the hub cannot be reached, since HF_HUB_OFFLINE forbids it; unset it")
    tries = 0
    for _ in range(MOST_REDIRECTS + MOST_TRIES):
        _require_followed(name, url)
        with closing(_sent(name, url, head, headers or {})) as response:
            tries += response.status in _BUSY_STATUSES
            if response.status in _BUSY_STATUSES and tries < MOST_TRIES:
                time.sleep(RETRY_SECONDS)
                continue
            if response.status in REDIRECTS and not (head and response.headers["X-Linked-Etag"]):
                url = following(name, url, response.headers.get("Location", ""))
                continue
            if response.status >= 400:
                raise refusal(name, response.status, response.headers)
            yield HubAnswer(url, response.status, response.headers, response)
            return
    raise StorageError(f"{name}: the hub redirects without end; check HF_ENDPOINT")


def following(name: HubName, url: str, link: str) -> str:
    """Resolve `link`, found in an answer of `url`; raise StorageError if it is not an address."""
    try:
        return quote(urljoin(url, link), safe=string.punctuation)
    except ValueError:
        raise StorageError(f"{name}: the hub redirects to {quoted(link)}, which is not an address") from None


def _require_followed(name: HubName, url: str) -> None:
    """Raise StorageError for an address that is not encrypted, unless HF_ENDPOINT is not encrypted either."""
    scheme = _origin(url)[0]
    if scheme != "https" and (scheme != "http" or not _is_plain_hub()):
        raise StorageError(
            f"{name}: the address {quoted(url)} is not used, since it is not https; check HF_ENDPOINT"
        )


def _is_plain_hub() -> bool:
    from huggingface_hub import constants

    return _origin(constants.ENDPOINT)[0] == "http"


def _origin(url: str) -> tuple[str, str]:
    """Return an address's scheme and its host with port; empty texts if they are missing."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", ""
    return parts.scheme, parts.netloc


def _sent(name: HubName, url: str, head: bool, headers: Mapping[str, str]) -> Response:
    from huggingface_hub import constants

    said = {**headers}
    if _origin(url) == _origin(constants.ENDPOINT) and (token := _token(name)):
        said["Authorization"] = f"Bearer {token}"
    patience = constants.HF_HUB_ETAG_TIMEOUT if head else constants.HF_HUB_DOWNLOAD_TIMEOUT
    try:
        return open_url(url, said, method="HEAD" if head else "GET", patience=patience)
    except (HTTPException, OSError, ValueError) as error:
        reason = printable(str(getattr(error, "reason", error)), LONGEST_REASON)
        host = printable(_origin(url)[1])
        raise HubUnreachable(
            f"{name}: the hub cannot be reached at {host} ({reason}); check the connection, and HF_ENDPOINT "
            "if it is set"
        ) from None


def _token(name: HubName) -> str | None:
    """Return the user's token for the hub; raise StorageError if it cannot be read."""
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return None
    try:
        token = get_token()
    # A token may come from several places, each with its own errors.
    except Exception as error:
        reason = printable(str(error), LONGEST_REASON)
        raise StorageError(f"{name}: the token for the hub cannot be read ({reason})") from None
    if token is not None and not (token.isascii() and token.isprintable()):
        raise StorageError(f"{name}: HF_TOKEN contains characters that no token has; set it again")
    return token
