"""Who may come in: keys out of a file, and the owner that each stands for."""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from anespec.manifests.errors import StorageError, UsageError
from anespec.runtime.callers import Caller
from anespec.runtime.server.errors import ApiError

SHORTEST_KEY = 16
"""Characters: what can be guessed keeps nobody out."""


@dataclass(frozen=True)
class Key:
    """A named key; of the secret only its hash is kept."""

    name: str
    digest: bytes


class KeyRing:
    """The keys of a daemon. Without any, everybody who reaches it may come in."""

    def __init__(self, keys: Sequence[Key] = ()) -> None:
        self._keys = tuple(keys)

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """The keys of a file's lines, NAME:KEY each; empty lines and those that begin with # say nothing.

        Raises:
            StorageError: it cannot be read.
            UsageError: others may read it, or a line is no key.
        """
        try:
            mode, text = path.stat().st_mode, path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(f"{path}: cannot be read as a file of keys ({error})") from error
        if mode & 0o077:
            raise UsageError(f"{path}: others may read this file of keys; chmod 600 it")
        keys = []
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            name, colon, secret = line.strip().partition(":")
            if not (name and colon) or len(secret) < SHORTEST_KEY:
                raise UsageError(
                    f"{path}: line {number} is not NAME:KEY with a key of {SHORTEST_KEY} characters or more"
                )
            keys.append(Key(name, _digest(secret)))
        if not keys:
            raise UsageError(f"{path}: holds no key; write a line NAME:KEY")
        if len({key.name for key in keys}) < len(keys):
            raise UsageError(f"{path}: two keys have one name; give each its own")
        return cls(keys)

    def take(self, other: "KeyRing") -> None:
        """Know another ring's keys from now on, instead of these."""
        self._keys = other._keys

    @property
    def needed(self) -> bool:
        """Whether a request needs a key."""
        return bool(self._keys)

    def caller(self, authorization: str | None) -> Caller:
        """Who sends this Authorization header; it takes as long whether a key is right or wrong.

        Raises:
            ApiError: a key is needed, and this is none.
        """
        if not self._keys:
            return Caller()
        scheme, _, secret = (authorization or "").partition(" ")
        digest = _digest(secret.strip())
        found = [key for key in self._keys if hmac.compare_digest(key.digest, digest)]
        if scheme.lower() != "bearer" or not found:
            raise ApiError(
                401,
                "this server needs an API key: send Authorization: Bearer KEY",
                "invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        return Caller(owner=found[0].name)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
