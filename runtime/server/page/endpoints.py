"""Serve the chat page: its files, which need no key, and `/stats`, which needs one."""

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
    """A file of the page; its ETag is derived from its content."""

    data: bytes
    media_type: str
    tag: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """Read a file; its suffix determines the media type."""
        data = path.read_bytes()
        return cls(data, _TYPES[path.suffix], f'"{hashlib.sha256(data).hexdigest()[:32]}"')

    def response(self, known: str) -> Response:
        """Return the file, or 304 if `known`, the If-None-Match header, has its ETag."""
        # Browsers must revalidate each time, since a newer daemon may have other files.
        headers = {"etag": self.tag, "cache-control": "no-cache", "content-security-policy": POLICY}
        tags = {tag.strip().removeprefix("W/") for tag in known.split(",")}
        if tags & {self.tag, "*"}:
            return Response(status_code=304, headers=headers)
        return Response(self.data, headers=headers, media_type=self.media_type)


@cache
def assets() -> Mapping[str, Asset]:
    """Return all files by their path below `FOLDER`; they are read once."""
    files = sorted(path for path in FOLDER.rglob("*") if path.is_file())
    return MappingProxyType({path.relative_to(FOLDER).as_posix(): Asset.of(path) for path in files})


async def show_page(call: Call[None]) -> Response:
    """Return the page."""
    return assets()[INDEX].response(call.request.headers.get("if-none-match", ""))


async def show_file(call: Call[None]) -> Response:
    """Return a file of the page."""
    found = assets().get(call.request.path_params["name"])
    if found is None:
        raise ApiError(404, "the page has no such file", "not_found")
    return found.response(call.request.headers.get("if-none-match", ""))


class ModelStats(BaseModel):
    """The load of a model: waiting requests, running and available sequences, and counts since it was loaded.

    `rows` counts the rows of passes by kind, without pads; `accepted` counts accepted draft rows. `checking`
    is the progress of background gates, if any; `has_template` is whether it has a chat template.
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
        """Return the stats of a model that the caller may see."""
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
    """The stats of the models in memory, by id."""

    models: dict[str, ModelStats]


async def stats(call: Call[None]) -> Response:
    """Return the load of the models by the caller's requests; for an administrator by all requests."""
    models = call.daemon.models.loaded
    return json_answer(
        StatsAnswer(models={name: ModelStats.of(model, call.caller) for name, model in models.items()})
    )


ENDPOINTS = (
    Endpoint("GET", "/", "A page to chat on.", show_page, is_open=True, is_kept=True),
    Endpoint("GET", "/page/{name:path}", "A file of that page.", show_file, is_open=True, is_kept=True),
    Endpoint("GET", "/stats", "How busy the models are.", stats, answer=StatsAnswer),
)
