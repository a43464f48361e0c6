"""A server of one file, as they are: with redirects, ranges, validators, and what goes wrong with them."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from local_server import serving_on_port

from anespec.models.url import download
from anespec.models.url.name import path_of


@dataclass
class FileServer:
    """What is served at any path below /files/; /moved/ redirects there, /away leads to `away`. `others` are
    served at theirs.

    `drops`: after how many bytes the next answers break off, one each. `lengths` says whether an answer has
    its length, else it comes in chunks; `said_bytes` stands in place of the true one. `linked` is a hash as
    a hub says it with a redirect. `asked` are the requests: path, range and what they compare. `raw` answers
    byte by byte in the place of all this: it is given what writes, and the request.
    """

    content: bytes
    others: dict[str, bytes] = field(default_factory=dict)
    etag: str | None = '"one"'
    modified: str | None = None
    ranges: bool = True
    lengths: bool = True
    said_bytes: int | None = None
    status: int = 0
    drops: list[int] = field(default_factory=list)
    away: str = ""
    linked: str = ""
    asked: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    url: str = ""
    raw: Callable[[Callable[[bytes], object], BaseHTTPRequestHandler], None] | None = None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_facts: FileServer

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        # A client that has what it wants breaks off.
        with contextlib.suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:
        facts = self.server_facts
        compared = self.headers["If-None-Match"] or self.headers["If-Modified-Since"]
        facts.asked.append((self.path, self.headers["Range"], compared))
        if facts.raw is not None:
            self.close_connection = True
            facts.raw(self.wfile.write, self)
        elif facts.status:
            self._say(facts.status, {})
        elif self.path == "/away":
            self._say(302, {"Location": facts.away})
        elif self.path.startswith("/moved/"):
            linked = {"X-Linked-Etag": f'"{facts.linked}"'} if facts.linked else {}
            self._say(302, {"Location": f"/files/{self.path.removeprefix('/moved/')}"} | linked)
        elif compared is not None and compared in (facts.etag, facts.modified):
            self._say(304, {})
        else:
            self._give()

    def _give(self) -> None:
        facts = self.server_facts
        content = facts.others.get(self.path, facts.content)
        said = {"ETag": facts.etag, "Last-Modified": facts.modified}
        headers = {name: value for name, value in said.items() if value is not None}
        asked = self.headers["Range"]
        if asked and facts.ranges and self.headers["If-Range"] in (facts.etag, facts.modified):
            first = int(asked.removeprefix("bytes=").rstrip("-"))
            if first >= len(content):
                self._say(416, headers | {"Content-Range": f"bytes */{len(content)}"})
                return
            where = {"Content-Range": f"bytes {first}-{len(content) - 1}/{len(content)}"}
            self._say(206, headers | where, content[first:])
        else:
            self._say(200, headers, content)

    def _say(self, status: int, headers: dict[str, str], content: bytes = b"") -> None:
        facts = self.server_facts
        length = len(content) if facts.said_bytes is None or not content else facts.said_bytes
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        chunked = bool(content) and not facts.lengths
        self.send_header(*(("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(length))))
        self.end_headers()
        is_cut = bool(content) and bool(facts.drops)
        if is_cut:
            content = content[: facts.drops.pop(0)]
        if chunked:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content) + (b"" if is_cut else b"0\r\n\r\n"))
        else:
            self.wfile.write(content)
        self.close_connection = is_cut or length != len(content)


@contextlib.contextmanager
def serving_file(facts: FileServer) -> Iterator[FileServer]:
    """Answer while the block lasts, at `url`."""
    handler = type("Handler", (_Handler,), {"server_facts": facts})
    with serving_on_port(handler) as port:
        facts.url = f"http://127.0.0.1:{port}"
        yield facts


@contextlib.contextmanager
def downloading_from(content: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """Serve `content` while the block lasts; downloads go into `cache`, in small pieces, without waiting."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(download, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(download, "PIECE_BYTES", 1000)
    with serving_file(FileServer(content)) as facts:
        yield facts


def place(server: FileServer, path: str = "/files/llama.gguf") -> Path:
    """The path by which a file of the server is named."""
    return path_of(server.url + path)
