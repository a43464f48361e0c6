"""Models that are named by a URL: https://HOST/FILE.gguf, with #sha256=HASH after it where that is known."""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

from anespec.manifests.errors import UsageError
from anespec.manifests.formatting import printable, quoted

_BEGINNING = re.compile(r"(https?):/+", re.IGNORECASE)
_HASH = re.compile(r"sha256=([0-9a-f]{64})", re.IGNORECASE)
_UNUSUAL = re.compile(r"[^\w.+-]", re.ASCII)
LONGEST_NAME = 128


@dataclass(frozen=True)
class UrlName:
    """A URL without what follows `#`, and the hash in hexadecimal digits that the file must have, if any."""

    url: str
    sha256: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one.

        Raises:
            UsageError: it is none, names a user, or ends in something else than a hash.
        """
        url, _, fragment = text.partition("#")
        try:
            parts = urlsplit(url)
            host, user, _ = parts.hostname, parts.username, parts.port
        except ValueError:
            host = user = None
        if not host or not url.isprintable() or " " in url:
            raise UsageError(f"{quoted(text)} is no URL of a file; write https://HOST/FILE.gguf")
        if user is not None:
            raise UsageError(
                f"the URL of a file at {printable(host)} holds a user's name, and logging in is not "
                "supported; download it with another program, and give the file"
            )
        found = _HASH.fullmatch(fragment)
        if fragment and found is None:
            raise UsageError(f"{quoted(text)}: what follows # is no hash; write #sha256=HASH, or nothing")
        return cls(url, None if found is None else found[1].lower())

    @classmethod
    def of(cls, path: Path) -> Self:
        """The URL that became a path, which has one slash for several; raises UsageError as `parse` does."""
        return cls.parse(_with_two_slashes(str(path)))

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The local file name: the last part of the URL's path, in characters that any file system
        accepts."""
        last = unquote(urlsplit(self.url).path).rpartition("/")[2]
        plain = _UNUSUAL.sub("_", last).lstrip(".").removesuffix(".gguf")[:LONGEST_NAME]
        return f"{plain or 'model'}.gguf"

    @property
    def is_private(self) -> bool:
        """Whether the transfer is protected from changes: it is encrypted, or comes from this machine."""
        return is_private(self.url)


def is_private(url: str) -> bool:
    """The same of any URL."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and _is_this_machine(parts.hostname or ""))


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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
            f"{quoted(text)}: write // and /./ within a URL as %2F%2F and /%2E/, and end it with a name"
        )
    return path
