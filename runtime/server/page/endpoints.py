"""The page's endpoints: its files, which need no key, and the figures that it shows, which do."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Self

from pydantic import BaseModel
from starlette.responses import Response

from anespec.runtime.engine.requests import Principal
from anespec.runtime.passes import RowKind
from anespec.runtime.server.http.endpoint import Call, Endpoint
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.streams import json_answer
from anespec.runtime.server.models import ServingModel

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


class ModelStats(BaseModel):
    """Requests that wait, sequences that run of those that can, and what was run since the model was loaded.

    `rows` of passes by kind, pads not counted; `accepted` draft rows were right. `checking` is how far its
    gates are, where they are asked; `has_template` whether it has a chat template.
    """

    waiting: int
    active: int
    sequences: int
    passes: int
    rows: dict[str, int]
    accepted: int
    checking: str | None
    has_template: bool

    @classmethod
    def of(cls, model: ServingModel, caller: Principal) -> "ModelStats":
        """Of a model, as far as a caller may know of it."""
        load = model.load_of(caller)
        return cls(
            waiting=load.waiting,
            active=load.active,
            sequences=load.sequences,
            passes=load.passes,
            rows={rows.kind.value: rows.count for rows in load.rows if rows.kind is not RowKind.PAD},
            accepted=load.accepted,
            checking=model.checking,
            has_template=model.chat_template is not None,
        )


class StatsAnswer(BaseModel):
    """The models in memory, by id."""

    models: dict[str, ModelStats]


async def stats(call: Call[None]) -> Response:
    """How busy the models are now with what the caller asked for, or for an administrator with all."""
    models = call.daemon.models.loaded
    return json_answer(
        StatsAnswer(models={name: ModelStats.of(model, call.caller) for name, model in models.items()})
    )


ENDPOINTS = (
    Endpoint("GET", "/", "A page to chat on.", show_page, is_open=True, is_kept=True),
    Endpoint("GET", "/page/{name:path}", "A file of that page.", show_file, is_open=True, is_kept=True),
    Endpoint("GET", "/stats", "How busy the models are.", stats, answer=StatsAnswer),
)
