"""Read the file of API keys, and find the tenant of each request."""

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from anespec.runtime.engine.requests import Principal
from anespec.runtime.server.http.errors import ApiError
from anespec.system.errors import StorageError, UsageError

SHORTEST_KEY = 16
"""The least length of a key in characters: a shorter one can be guessed."""

LARGEST_FILE = 1 << 20

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""The allowed characters of names, which are written to logs."""

_ADMIN = " admin"
"""The end of a line with an administrator's key. Keys contain no spaces."""

_SECRET = re.compile(rf"[!-~]{{{SHORTEST_KEY},4096}}")
"""The characters that a header can hold."""


@dataclass(frozen=True)
class Key:
    """A named key; only the hash of its secret is stored."""

    name: str
    digest: bytes
    is_admin: bool = False

    @property
    def tenant(self) -> str:
        """Return the tenant of the key's requests.

        The same name with another key is another tenant, so the draft memory of a removed key is not
        available to the next key of that name.
        """
        return f"{self.name} {hashlib.sha256(b'tenant' + self.digest).hexdigest()[:8]}"


def authorization_of(headers: Mapping[str, str]) -> str | None:
    """Return a request's Authorization header, or what it would be with the key in `x-api-key`.

    Anthropic's clients send the latter; Authorization takes precedence.
    """
    key = headers.get("x-api-key")
    return headers.get("authorization", None if key is None else f"Bearer {key}")


class KeyRing:
    """The keys of a daemon.

    Without keys, every client that can connect is accepted. With one key or none, each client is an
    administrator, since there are no other tenants.
    """

    def __init__(self, keys: Sequence[Key] = ()) -> None:
        self._keys = tuple(keys)

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """Read a file of keys, with a line NAME:KEY or NAME:KEY admin for each.

        Empty lines and lines that begin with # are ignored.

        Raises:
            StorageError: the file cannot be read.
            UsageError: other users can read it or could have written it, or a line is not a key.
        """
        keys: list[Key] = []
        for number, line in enumerate(_private_text(path).splitlines(), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            name, _, rest = line.strip().partition(":")
            secret = rest.removesuffix(_ADMIN)
            if not (_NAME.fullmatch(name) and _SECRET.fullmatch(secret)):
                raise UsageError(
                    f"{path}: line {number} is not NAME:KEY, or NAME:KEY admin, with a name of letters, "
                    f"digits, dots, dashes and a key of {SHORTEST_KEY} characters or more without spaces"
                )
            keys.append(Key(name, _digest(secret), is_admin=secret != rest))
        if not keys:
            raise UsageError(f"{path}: contains no key; write a line NAME:KEY")
        if len({key.name for key in keys}) < len(keys):
            raise UsageError(f"{path}: two keys have the same name; give each its own")
        if len({key.digest for key in keys}) < len(keys):
            raise UsageError(f"{path}: two names have the same key; give each its own")
        return cls(keys)

    def take(self, other: "KeyRing") -> None:
        """Replace the keys by those of another ring."""
        self._keys = other._keys

    @property
    def needed(self) -> bool:
        """Return whether requests need a key."""
        return bool(self._keys)

    @property
    def tenants(self) -> frozenset[str]:
        """Return the tenants of the keys."""
        return frozenset(key.tenant for key in self._keys)

    @property
    def has_admin(self) -> bool:
        """Return whether any accepted client is an administrator."""
        return len(self._keys) < 2 or any(key.is_admin for key in self._keys)

    def tenant(self, authorization: str | None) -> str | None:
        """Return the tenant of the key in this Authorization header; None if it has no valid key."""
        try:
            return self.caller(authorization).tenant
        except ApiError:
            return None

    def caller(self, authorization: str | None) -> Principal:
        """Return the caller with this Authorization header, in constant time for right and wrong keys.

        Raises:
            ApiError: a key is needed, and the header has no valid one.
        """
        if not self._keys:
            return Principal(is_admin=True)
        scheme, _, secret = (authorization or "").partition(" ")
        digest = _digest(secret.strip())
        found = [key for key in self._keys if hmac.compare_digest(key.digest, digest)]
        if scheme.lower() != "bearer" or not found:
            # The key that was sent is never repeated, not even in logs.
            raise ApiError(
                401,
                "this server needs an API key: send Authorization: Bearer KEY, or x-api-key: KEY",
                "invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        key = found[0]
        return Principal(tenant=key.tenant, name=key.name, is_admin=key.is_admin or len(self._keys) == 1)


def _private_text(path: Path) -> str:
    """Return the text of a file that only this user can access. It is opened once: the checked file is the
    one read."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(opened, "rb") as file:
            found = os.fstat(opened)
            if not stat.S_ISREG(found.st_mode):
                raise UsageError(f"{path}: is not a file; name one with a line NAME:KEY for each key")
            if found.st_uid not in (os.geteuid(), 0):
                raise UsageError(
                    f"{path}: belongs to another user, who can read its keys; copy it to a file of your own"
                )
            if found.st_mode & 0o077:
                raise UsageError(f"{path}: other users can read this file of keys; run chmod 600 on it")
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise StorageError(f"{path}: cannot be read as a file of keys ({error.strerror or error})") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: is not text; write a line NAME:KEY for each key") from None
    if len(data) > LARGEST_FILE:
        raise UsageError(f"{path}: has more than {LARGEST_FILE} bytes; keep only the keys in it")
    return text


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
