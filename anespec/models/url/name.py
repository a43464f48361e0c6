"""Parse models named by a URL: https://HOST/FILE.gguf, optionally followed by #sha256=HASH."""

import ipaddress
import re
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote, urlsplit

from anespec.gguf.parts import part_names
from anespec.system.errors import UsageError
from anespec.system.formatting import LONGEST_REASON, printable, quoted

_BEGINNING = re.compile(r"(https?):/+", re.IGNORECASE)
_HASH = re.compile(r"sha256=([0-9a-f]{64})", re.IGNORECASE)
_UNUSUAL_CHARACTER = re.compile(r"[^\w.+-]", re.ASCII)
_AUTHORITY = re.compile(r"(?:\[[0-9a-f:.]+\]|[\w.~-]+)(?::\d{0,5})?", re.ASCII | re.IGNORECASE)
"""A host, optionally with a port. Python's urlsplit reads `a[::1].example.org` as the host `::1`."""

_USER = re.compile(r"^([a-z]+:/+)[^/]*@", re.IGNORECASE)
LONGEST_NAME = 128


@dataclass(frozen=True)
class UrlName:
    """A URL without its fragment, and the SHA-256 that the file must have (hexadecimal), if given."""

    url: str
    sha256: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a URL.

        Raises:
            UsageError: the text is not a URL, contains a user's name, or has a fragment other than a hash.
        """
        url, _, fragment = text.partition("#")
        is_text = url.isprintable() and " " not in url
        url = _encoded(url)
        if _USER.match(url.partition("?")[0]):
            raise UsageError(
                f"{shown_url(url)}: the URL contains a user's name, and logging in is not supported; "
                "download the file with another program, and give it"
            )
        if not is_text or host_of(url) is None:
            raise UsageError(
                f"{quoted(shown_url(text))} is not the URL of a file; write https://HOST/FILE.gguf"
            )
        found = _HASH.fullmatch(fragment)
        if fragment and found is None:
            raise UsageError(
                f"{shown_url(url)}: the part after # is not a hash; write #sha256=HASH, or nothing"
            )
        return cls(url, None if found is None else found[1].lower())

    @classmethod
    def of(cls, path: Path) -> Self:
        """Restore the URL from a path, in which `//` became `/`; raises UsageError as `parse` does."""
        return cls.parse(_with_two_slashes(str(path)))

    def __str__(self) -> str:
        """Return the URL for messages, without secrets."""
        return shown_url(self.url)

    @property
    def name(self) -> str:
        """Return the local file name: the last part of the URL's path, in characters that any file system
        accepts."""
        last = unquote(urlsplit(self.url).path).rpartition("/")[2]
        plain = _UNUSUAL_CHARACTER.sub("_", last).lstrip(".").removesuffix(".gguf")[:LONGEST_NAME]
        return f"{plain or 'model'}.gguf"

    @property
    def parts(self) -> "tuple[UrlName, ...]":
        """Return the URLs of all files of the model.

        Raises:
            UsageError: one hash is given for several files.
            GGUFError: the file is a part other than the first, or has too many.
        """
        parts = urlsplit(self.url)
        if len(paths := part_names(parts.path, self)) == 1:
            return (self,)
        if self.sha256 is not None:
            raise UsageError(
                f"{self}: the model has {len(paths)} parts, and what stands after # is the hash of one file; "
                "leave it out"
            )
        return tuple(UrlName(parts._replace(path=path).geturl()) for path in paths)

    @property
    def is_private(self) -> bool:
        """Return whether the transfer is protected from changes: encrypted, or from this machine."""
        return is_private(self.url)


def is_private(url: str) -> bool:
    """Return whether the transfer from a URL is protected from changes, as for `UrlName.is_private`."""
    return host_of(url) is not None and (urlsplit(url).scheme == "https" or is_this_machine(url))


def is_this_machine(url: str) -> bool:
    """Return whether the host of an http or https URL is this machine."""
    host = host_of(url)
    try:
        return host is not None and ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_of(url: str) -> str | None:
    """Return the host of an http or https URL, in lower case; None if it is not a valid one."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return None
    is_sound = parts.scheme in ("http", "https") and _AUTHORITY.fullmatch(parts.netloc) is not None
    return host if is_sound else None


def _encoded(url: str) -> str:
    """Return a URL in ASCII, as browsers send it: the host in IDNA, the rest percent-encoded UTF-8.

    A host that IDNA cannot encode stays unchanged.
    """
    if url.isascii():
        return url
    try:
        parts = urlsplit(url)
        host, colon, port = parts.netloc.partition(":")
        netloc = host.encode("idna").decode("ascii") + colon + port
        path, query = (quote(part, safe=string.punctuation) for part in (parts.path, parts.query))
    except ValueError:
        return url
    return parts._replace(netloc=netloc, path=path, query=query).geturl()


def shown_url(url: str) -> str:
    """Return a URL for messages and logs, without its user and query, which may be secrets."""
    plain, mark, _ = url.partition("?")
    return printable(_USER.sub(r"\1", plain), LONGEST_REASON) + ("?…" if mark else "")


def is_url(path: Path) -> bool:
    """Return whether a path is a URL."""
    return _BEGINNING.match(str(path)) is not None


def _with_two_slashes(text: str) -> str:
    return _BEGINNING.sub(r"\1://", text, count=1)


def path_of(text: str) -> Path:
    """Return the typed text as a path from which the URL can be restored.

    Raises:
        UsageError: it is a URL that a path would change.
    """
    path = Path(text)
    if is_url(path) and UrlName.of(path) != UrlName.parse(_with_two_slashes(text)):
        raise UsageError(
            f"{shown_url(text)}: write // and /./ within a URL as %2F%2F and /%2E/, and end it with a name"
        )
    return path
