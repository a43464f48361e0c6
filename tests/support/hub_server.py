"""A stand-in for the Hugging Face hub: its paths, headers and errors, over files that a test gives it.

A file is found as the hub's large files are: HEAD and GET of /OWNER/REPO/resolve/REVISION/FILE answer 302
with X-Repo-Commit, X-Linked-Etag and X-Linked-Size, and its bytes lie at another address that knows ranges.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote

from local_server import serving_on_port


@dataclass
class Hub:
    """What the hub has: for each repository the files of its revisions.

    `token` is what gated repositories ask for. `drops`: after how many bytes the next answers break off, one
    each. What is `said_` stands in place of a file's own size and hashes. `ranges` are the ranges that
    clients asked for, `tokens` whatever Authorization the store was sent.
    """

    repositories: dict[str, dict[str, dict[str, bytes]]]
    gated: set[str] = field(default_factory=set)
    token: str = "hf_secret"
    drops: list[int] = field(default_factory=list)
    lies: bool = False
    said_size: int | None = None
    said_etag: str | None = None
    said_commit: str | None = None
    status: int = 0
    ranges: list[str | None] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def commit(self, repository: str, revision: str) -> str:
        """A commit's hash."""
        files = self.repositories[repository][revision]
        return hashlib.sha1(repr((repository, sorted(files.items()))).encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    stores: str

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        hub, path = self.hub, unquote(self.path.partition("?")[0])
        hub.asked.append(f"{self.command} {path}")
        if hub.status:
            self._say(hub.status)
        elif path.startswith("/store/"):
            self._store(path.removeprefix("/store/"))
        elif path.startswith("/api/models/"):
            self._list(path.removeprefix("/api/models/").split("/"))
        else:
            match path.removeprefix("/").split("/", 3):
                case [owner, name, "resolve", rest]:
                    self._resolve(f"{owner}/{name}", rest)
                case _:
                    self._say(404)

    def _resolve(self, repository: str, rest: str) -> None:
        hub = self.hub
        if repository not in hub.repositories:
            self._say(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
            return
        if repository in hub.gated and self.headers["authorization"] != f"Bearer {hub.token}":
            self._say(401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
            return
        revisions = hub.repositories[repository]
        named = {hub.commit(repository, revision): revision for revision in revisions}
        named |= {revision: revision for revision in revisions}
        revision, _, file = rest.partition("/")
        if revision not in named:
            self._say(404, {"X-Error-Code": "RevisionNotFound"})
            return
        own = hub.commit(repository, named[revision])
        commit = {"X-Repo-Commit": own if hub.said_commit is None else hub.said_commit}
        content = revisions[named[revision]].get(file)
        if content is None:
            self._say(404, {"X-Error-Code": "EntryNotFound"} | commit)
            return
        digest = hashlib.sha256(content).hexdigest()
        digest = digest if hub.said_etag is None else hub.said_etag
        size = len(content) if hub.said_size is None else hub.said_size
        linked = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(size)}
        place = f"/store/{repository}/{named[revision]}/{file}"
        self._say(302, commit | linked | {"Location": f"{self.stores}{place}"})

    def _store(self, place: str) -> None:
        hub = self.hub
        owner, name, revision, file = place.split("/", 3)
        content = hub.repositories[f"{owner}/{name}"][revision][file]
        if hub.lies:
            content = bytes(len(content))
        asked = self.headers["range"]
        hub.ranges.append(asked)
        hub.tokens.append(self.headers["authorization"])
        first = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        headers = {"Content-Range": f"bytes {first}-{len(content) - 1}/{len(content)}"} if asked else {}
        self._say(206 if asked else 200, headers, content[first:])

    def _list(self, parts: list[str]) -> None:
        owner, name, tree, revision = parts
        assert tree == "tree"
        revisions = self.hub.repositories.get(f"{owner}/{name}")
        if revisions is None or revision not in revisions:
            missing = "RepoNotFound" if revisions is None else "RevisionNotFound"
            self._say(404, {"X-Error-Code": missing})
            return
        files = revisions[revision]
        facts = [{"type": "file", "path": file, "size": len(files[file]), "oid": "0" * 40} for file in files]
        self._say(200, {"Content-Type": "application/json"}, json.dumps(facts).encode())

    def _say(self, status: int, headers: dict[str, str] | None = None, content: bytes = b"") -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD" or not content:
            return
        if self.hub.drops:
            content = content[: self.hub.drops.pop(0)]
            self.close_connection = True
        self.wfile.write(content)


@contextlib.contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Answer while the block lasts; `hub.url` is what HF_ENDPOINT is set to; files lie at another host."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    with serving_on_port(handler) as port:
        hub.url = f"http://127.0.0.1:{port}"
        handler.stores = f"http://localhost:{port}"  # type: ignore[attr-defined]
        yield hub
