"""A hub that means harm, and a cache that others may write: what they cannot overwrite or exhaust."""

import contextlib
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from local_server import serving_on_port

from anespec.models.remote import fetch, fetched
from anespec.system.errors import AnespecError, RequestError, StorageError

CONTENT = b"GGUF" + bytes(range(256)) * 400
ETAG = hashlib.sha256(CONTENT).hexdigest()
COMMIT = "a" * 40
NAME = Path("hf:owner/repo/model.gguf")
MUCH = 100 << 20
"""Bytes that stand for an endless answer."""

Say = Callable[..., None]
Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers as a test says; `sent` counts the bytes of endless bodies."""

    protocol_version = "HTTP/1.1"
    answer: Answer
    asked: list[str]
    tokens: list[str | None]
    sent = 0

    def do_GET(self) -> None:
        """Answer."""
        self.asked.append(f"{self.command} {self.path.partition('?')[0]}")
        self.tokens.append(self.headers["Authorization"])
        type(self).answer(self)

    def do_HEAD(self) -> None:
        """Answer."""
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def say(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        """Send a whole answer."""
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def endless(self, status: int, headers: dict[str, str]) -> None:
        """Send MUCH bytes, as far as they are taken."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        if self.command == "GET":
            with contextlib.suppress(OSError):
                for _ in range(MUCH >> 20):
                    self.wfile.write(b" " * (1 << 20))
                    type(self).sent += 1 << 20


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Handler]]:
    from huggingface_hub import constants

    handler = type("Own", (Handler,), {"answer": honest, "asked": [], "tokens": []})
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home/hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serving_on_port(handler) as port:
        url = f"http://127.0.0.1:{port}"
        handler.other = f"http://localhost:{port}"  # type: ignore[attr-defined]
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        yield handler


def facts(handler: Handler) -> dict[str, str]:
    return {
        "X-Repo-Commit": COMMIT,
        "X-Linked-Etag": f'"{ETAG}"',
        "X-Linked-Size": str(len(CONTENT)),
        "Location": f"{handler.other}/store",  # type: ignore[attr-defined]
    }


def honest(handler: Handler) -> None:
    if handler.path == "/store":
        handler.say(200, {}, CONTENT)
    else:
        handler.say(302, facts(handler))


def outside(folder: Path) -> list[Path]:
    """What lies there, but for the two caches."""
    caches = (folder / "home/hub", folder / "cache")
    found = [path for path in folder.rglob("*") if not any(path.is_relative_to(cache) for cache in caches)]
    return [path for path in found if path != folder / "home"]


@pytest.mark.parametrize("header", ["X-Linked-Etag", "X-Repo-Commit"])
@pytest.mark.parametrize("nth", range(1, 5))
def test_no_later_answer_leads_out_of_the_cache(
    hub: type[Handler], tmp_path: Path, header: str, nth: int
) -> None:
    asked = 0

    def answer(handler: Handler) -> None:
        nonlocal asked
        said = facts(handler)
        if handler.path == "/store":
            handler.say(200, {}, CONTENT)
            return
        asked += 1
        if asked >= nth:
            said[header] = "../../../../chosen/evil"
        handler.say(302, said)

    hub.answer = answer
    with contextlib.suppress(AnespecError):
        fetched(NAME)
    assert outside(tmp_path) == []


def test_each_thing_is_asked_once(hub: type[Handler]) -> None:
    """So that no second answer can differ from the first; and nothing else is asked, such as for programs."""
    fetched(NAME)
    assert hub.asked == [
        "HEAD /owner/repo/resolve/main/model.gguf",
        f"GET /owner/repo/resolve/{COMMIT}/model.gguf",
        "GET /store",
    ]
    assert hub.tokens == ["Bearer hf_secret", "Bearer hf_secret", None], "the store never sees the token"


def test_a_file_that_is_absent_makes_nothing(hub: type[Handler], tmp_path: Path) -> None:
    hub.answer = lambda handler: handler.say(
        404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": "../../../../made"}
    )
    with pytest.raises(RequestError, match="has no such file"):
        fetched(NAME)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("lacking", "said"),
    [("X-Linked-Etag", "no hash"), ("X-Repo-Commit", "no commit"), ("X-Linked-Size", "no size")],
)
def test_a_hub_that_leaves_something_out(hub: type[Handler], lacking: str, said: str) -> None:
    status = 302 if lacking == "X-Linked-Size" else 200
    hub.answer = lambda handler: handler.say(
        status, {name: value for name, value in facts(handler).items() if name != lacking}
    )
    with pytest.raises(StorageError, match=f"the hub says {said}") as refused:
        fetched(NAME)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/", "http://[", "/again"])
def test_a_redirect_that_is_not_followed(hub: type[Handler], place: str) -> None:
    hub.answer = lambda handler: handler.say(302, {"Location": place})
    with pytest.raises(StorageError, match=r"check HF_ENDPOINT|not an address"):
        fetched(NAME)
    assert len(hub.asked) < 20


def test_the_body_of_a_redirect_is_not_read(hub: type[Handler]) -> None:
    def answer(handler: Handler) -> None:
        if handler.path == "/store":
            handler.say(200, {}, CONTENT)
        else:
            handler.endless(302, facts(handler))

    hub.answer = answer
    assert fetched(NAME).read_bytes() == CONTENT
    assert hub.sent < 16 << 20


def test_a_store_that_begins_anew_without_end(hub: type[Handler], monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(handler: Handler) -> None:
        if handler.path == "/store":
            handler.say(200 if len(handler.asked) < 60 else 404, {}, CONTENT[:50])
        else:
            handler.say(302, facts(handler))

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    hub.answer = answer
    with pytest.raises(StorageError, match="broke after 50 B; run the same command again"):
        fetched(NAME)
    assert len(hub.asked) < 15


def test_a_store_that_goes_on_and_begins_anew_in_turn(
    hub: type[Handler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anespec.models.hub.download.RETRY_SECONDS", 0.0)

    def answer(handler: Handler) -> None:
        if handler.path != "/store":
            handler.say(302, facts(handler))
            return
        begun = len(handler.asked) % 4 < 2 and handler.headers["Range"]
        first = int(begun.removeprefix("bytes=").rstrip("-")) if begun else 0
        part = {"Content-Range": f"bytes {first}-{len(CONTENT) - 1}/{len(CONTENT)}"} if begun else {}
        length = {"Content-Length": str(len(CONTENT) - first)}
        handler.say(206 if begun else 200, part | length, CONTENT[first : first + 10])
        handler.close_connection = True

    hub.answer = answer
    with pytest.raises(StorageError, match="the connection broke"):
        fetch(NAME)
    assert len(hub.asked) < 30


def test_an_endless_list(hub: type[Handler]) -> None:
    hub.answer = lambda handler: handler.endless(200, {"Content-Type": "application/json"})
    with pytest.raises(StorageError, match="list of its files has no end"):
        fetched(Path("hf:owner/repo"))
    assert hub.sent < 48 << 20


def test_a_chunk_of_negative_length(hub: type[Handler]) -> None:
    """http.client takes it for all that ever comes."""

    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.close_connection = True
        with contextlib.suppress(OSError):
            handler.wfile.write(b"-1\r\n")
            for _ in range(MUCH >> 20):
                handler.wfile.write(b" " * (1 << 20))
                type(handler).sent += 1 << 20

    hub.answer = answer
    with pytest.raises(StorageError, match="the connection to the hub broke"):
        fetched(Path("hf:owner/repo"))
    assert hub.sent < 48 << 20


def test_endless_pages(hub: type[Handler]) -> None:
    def answer(handler: Handler) -> None:
        if len(handler.asked) > 300:
            handler.say(503, {})
            return
        page = [{"type": "file", "path": f"{len(handler.asked)}.txt", "size": 1, "oid": "0" * 40}]
        link = f'</api/models/owner/repo/tree/main?cursor={len(handler.asked)}>; rel="next"'
        handler.say(200, {"Link": link}, json.dumps(page).encode())

    hub.answer = answer
    with pytest.raises(StorageError, match="list of its files has no end"):
        fetched(Path("hf:owner/repo"))
    assert len(hub.asked) == 100


def test_a_list_of_two_pages(hub: type[Handler]) -> None:
    def answer(handler: Handler) -> None:
        if not handler.path.startswith("/api/"):
            honest(handler)
            return
        first = "cursor" not in handler.path
        page = [{"type": "file", "path": "a.txt" if first else "m-Q8_0.gguf", "size": 1, "oid": "0" * 40}]
        link = f'<{handler.other}/api/tree?cursor=1>; rel="next"'  # type: ignore[attr-defined]
        handler.say(200, {"Link": link} if first else {}, json.dumps(page).encode())

    hub.answer = answer
    assert fetch(Path("hf:owner/repo")).origin == "hf:owner/repo/m-Q8_0.gguf"
    assert hub.tokens[:2] == ["Bearer hf_secret", None], "the token goes to the hub alone"


ENTRY = '{"type": "file", "path": "m-Q8_0.gguf", "size": %s, "oid": "%s"}'


@pytest.mark.parametrize(
    "page",
    [
        *(
            f"[{ENTRY % (size, '0' * 40)}]"
            for size in ("null", '"abc"', "1e400", "-5", "1.5", "9" * 35, "{}")
        ),
        '{"a": 1}',
        "[1]",
        '[{"type": "file"}]',
        '[{"type": "file", "path": 5, "size": 1, "oid": "x"}]',
        '"x"',
        "not json",
        "",
        "[" * 100_000,
    ],
    ids=lambda page: page[:60],
)
def test_a_list_that_is_none(hub: type[Handler], page: str) -> None:
    hub.answer = lambda handler: handler.say(200, {"Content-Type": "application/json"}, page.encode())
    with pytest.raises(StorageError, match="answer is not a list of files") as refused:
        fetched(Path("hf:owner/repo"))
    assert "\n" not in str(refused.value)


def partials(blobs: Path) -> list[Path]:
    return [blobs / f"{ETAG}{user}.anespec.incomplete" for user in ("", f".{os.geteuid()}")]


@pytest.fixture
def blobs(tmp_path: Path) -> Path:
    found = tmp_path / "home/hub/models--owner--repo/blobs"
    found.mkdir(parents=True)
    return found


@pytest.mark.parametrize("lay", [os.symlink, os.link])
def test_what_others_lay_in_the_way_is_not_written_through(
    hub: type[Handler], tmp_path: Path, blobs: Path, lay: Callable[[Path, Path], None]
) -> None:
    victim = tmp_path / "precious"
    victim.write_bytes(b"precious")
    for partial in partials(blobs):
        lay(victim, partial)
    with pytest.raises(StorageError, match=r"is a link|second hard link"):
        fetched(NAME)
    assert victim.read_bytes() == b"precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_partial_of_another_user_is_not_gone_on_with(hub: type[Handler], blobs: Path) -> None:
    for partial in partials(blobs):
        partial.write_bytes(CONTENT[:100])
        os.chown(partial, 65534, 65534)
    with pytest.raises(StorageError, match="belongs to another user"):
        fetched(NAME)


@pytest.mark.parametrize("folder", ["", "blobs", "snapshots", "refs"])
def test_a_folder_that_is_a_link_is_not_written_through(
    hub: type[Handler], tmp_path: Path, folder: str
) -> None:
    target, repository = tmp_path / "target", tmp_path / "home/hub/models--owner--repo"
    target.mkdir()
    link = repository / folder if folder else repository
    link.parent.mkdir(parents=True)
    link.symlink_to(target)
    with pytest.raises(StorageError, match="is a link"):
        fetched(NAME)
    assert list(target.iterdir()) == []
    assert "GET /store" not in hub.asked, "before a long download"


def test_a_link_at_the_blobs_place_is_replaced(hub: type[Handler], tmp_path: Path, blobs: Path) -> None:
    (blobs / ETAG).symlink_to(tmp_path / "new")
    assert fetched(NAME).read_bytes() == CONTENT
    assert not (tmp_path / "new").exists()
    assert stat.S_ISREG((blobs / ETAG).lstat().st_mode)


def test_other_programs_find_it(hub: type[Handler], tmp_path: Path) -> None:
    """By the functions of the hub's own library, which asks nobody here."""
    from huggingface_hub import constants, hf_hub_download, scan_cache_dir

    found = fetched(NAME)
    assert hf_hub_download("owner/repo", "model.gguf", local_files_only=True) == str(found)
    assert found.readlink() == Path(f"../../blobs/{ETAG}")
    scanned = scan_cache_dir(constants.HF_HUB_CACHE)
    assert not scanned.warnings
    (repository,) = scanned.repos
    (revision,) = repository.revisions
    assert (revision.commit_hash, revision.refs) == (COMMIT, {"main"})


def test_a_file_system_without_links(hub: type[Handler], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", refuse)
    found = fetched(NAME)
    assert stat.S_ISREG(found.lstat().st_mode)
    assert fetched(NAME) == found
    assert hub.asked[-1].startswith("HEAD ")


def test_a_small_file_has_a_hash_of_git(hub: type[Handler]) -> None:
    etag = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()
    body = CONTENT
    hub.answer = lambda handler: handler.say(200, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'}, body)
    assert fetched(NAME).resolve().name == etag
    body, etag = CONTENT[::-1], "b" * 40
    with pytest.raises(StorageError, match="does not have the hash"):
        fetched(Path("hf:owner/repo/other.gguf"))


def test_a_token_that_is_none_is_not_shown(hub: type[Handler], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_one\x1bhf_two")
    with pytest.raises(StorageError, match="HF_TOKEN") as refused:
        fetched(NAME)
    assert "hf_one" not in str(refused.value)
