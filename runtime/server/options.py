"""The options of a daemon."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from anespec.system.errors import RequestError
from anespec.system.formatting import quoted
from anespec.system.options import Flag, Options, read_size

LONGEST_WAIT = 86400.0
"""The longest wait that an option may set: a day, in seconds."""

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")
_NAME = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")


def _require_origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    """Check that origins are written as browsers send them: a path or a pattern would never match."""
    for origin in origins:
        if not _ORIGIN.fullmatch(origin.lower()) or "*" in origin:
            raise RequestError(
                f"allow_origin: {quoted(origin)} is not a web origin; write one such as "
                "https://page.example, without a path"
            )
    return tuple(map(str.lower, origins))


def _require_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Check that names are written as in Host headers, without the port."""
    for name in names:
        if not _NAME.fullmatch(name.lower()):
            raise RequestError(
                f"allow_host: {quoted(name)} is not a host name; write it without http:// and without a port"
            )
    return tuple(map(str.lower, names))


class ServeOptions(Options):
    """The options of a daemon: its address, its keys and origins, and its limits."""

    host: str = Field(default="127.0.0.1", description="The address to listen on.")
    port: int = Field(default=8080, ge=0, le=65535, description="The port to listen on; 0: any free port.")
    unix: Path | None = Field(
        default=None, description="Listen on a Unix socket instead, which only you may use."
    )
    api_key_file: Annotated[Path | None, Flag(metavar="FILE")] = Field(
        default=None,
        description="File of API keys, one line NAME:KEY or NAME:KEY admin each; only you may have access to"
        " it (mode 600).",
    )
    allow_origin: Annotated[
        tuple[str, ...], AfterValidator(_require_origins), Flag(metavar="ORIGIN", multiple=True)
    ] = Field(default=(), description="A web origin whose pages may call; may be given several times.")
    allow_host: Annotated[
        tuple[str, ...], AfterValidator(_require_names), Flag(metavar="NAME", multiple=True)
    ] = Field(
        default=(),
        description="A host name that clients may use for this machine, in addition to its address; may be "
        "given several times.",
    )
    queue: int = Field(
        default=64, ge=1, le=1 << 20, description="Requests of a model and a key that may wait."
    )
    request_seconds: float = Field(
        default=600.0,
        gt=0,
        le=LONGEST_WAIT,
        description="The longest time of a request, including its wait in the queue.",
    )
    body_bytes: Annotated[int, BeforeValidator(read_size), Flag(metavar="BYTES")] = Field(
        default=16_000_000, ge=1, description="The largest request."
    )
    connections: int = Field(
        default=2048, ge=1, le=1 << 20, description="Connections at a time; more are refused."
    )
    receive_seconds: float = Field(
        default=30.0, gt=0, le=LONGEST_WAIT, description="How long a client may take to send a request."
    )
    send_seconds: float = Field(
        default=60.0,
        gt=0,
        le=LONGEST_WAIT,
        description="How long a client may leave its answer unread before the connection is closed.",
    )
    drain_seconds: float = Field(
        default=30.0,
        ge=0,
        le=LONGEST_WAIT,
        description="How long running requests may continue when the daemon is stopped.",
    )
    log_json: bool = Field(
        default=False, description="Log a line of JSON for each request on a terminal, too."
    )
    log_text: bool = Field(default=False, description="Log prompts and answers, too.")
