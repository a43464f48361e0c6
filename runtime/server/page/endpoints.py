"""The page's endpoints: its files need no key, its requests do."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Self

from starlette.responses import Response

from anespec.runtime.server.http.endpoint import Call, Endpoint
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.page import stats

FOLDER = Path(__file__).parent / "assets"
INDEX = "index.html"

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        # Only DOMPurify turns text into elements: anywhere else, assigning to innerHTML is an error.
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    )
)
"""The page's Content-Security-Policy: its scripts and styles are files, and it connects only to the
daemon."""

_TYPES = MappingProxyType(
    {
        ".html": "text/html; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".svg": "image/svg+xml",
        ".txt": "text/plain; charset=utf-8",
    }
)


@dataclass(frozen=True)
class Asset:
    """A file of the page; its tag changes with what it holds."""

    data: bytes
    media_type: str
    tag: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """Of a file, whose ending says what it is."""
        data = path.read_bytes()
        return cls(data, _TYPES[path.suffix], f'"{hashlib.sha256(data).hexdigest()[:32]}"')

    def response(self, known: str) -> Response:
        """The file, or that it is still the one that a client has: `known` is its If-None-Match header."""
        # A new daemon may bring new files, so a browser asks each time whether its own still hold.
        headers = {"etag": self.tag, "cache-control": "no-cache", "content-security-policy": POLICY}
        tags = {tag.strip().removeprefix("W/") for tag in known.split(",")}
        if tags & {self.tag, "*"}:
            return Response(status_code=304, headers=headers)
        return Response(self.data, headers=headers, media_type=self.media_type)


@cache
def assets() -> Mapping[str, Asset]:
    """All of them, by their path below `FOLDER`; read once."""
    files = sorted(path for path in FOLDER.rglob("*") if path.is_file())
    return MappingProxyType({path.relative_to(FOLDER).as_posix(): Asset.of(path) for path in files})


async def show_page(call: Call[None]) -> Response:
    """The page itself."""
    return assets()[INDEX].response(call.request.headers.get("if-none-match", ""))


async def show_file(call: Call[None]) -> Response:
    """A file that the page is made of."""
    found = assets().get(call.request.path_params["name"])
    if found is None:
        raise ApiError(404, "the page has no such file", "not_found")
    return found.response(call.request.headers.get("if-none-match", ""))


ENDPOINTS = (
    Endpoint("GET", "/", "A page to chat on.", show_page, is_open=True, is_kept=True),
    Endpoint("GET", "/page/{name:path}", "A file of that page.", show_file, is_open=True, is_kept=True),
    stats.ENDPOINT,
)
