"""Servers of files that mean harm or keep to no rule: nothing fills, nothing waits for ever."""

import contextlib
import itertools
import logging
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import command_of
from file_server import FileServer, downloading_from, place
from patience import PATIENCE
from waiting import until

from anespec.models.fetched import ROOM_KEPT
from anespec.models.remote import fetch, fetched
from anespec.models.url import connection, download
from anespec.models.url.name import UrlName, is_private, path_of, shown_url
from anespec.system.errors import AnespecError, Interrupted, StorageError, UsageError
from anespec.system.progress import Progress, ProgressCallbacks

MUCH = 64 << 20
"""Bytes that no buffer on the way takes."""

Write = Callable[[bytes], object]


@pytest.fixture
def server(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    with downloading_from(gguf.read_bytes(), tmp_path / "cache", monkeypatch) as facts:
        yield facts


def left(tmp_path: Path) -> list[str]:
    """What lies below the folder of downloads."""
    return sorted(path.name for path in (tmp_path / "cache" / "anespec" / "downloads" / "urls").rglob("*"))


def answers(server: FileServer, *heads: bytes, body: bytes | None = None) -> None:
    """Have the next requests answered so, the last of them for ever."""
    waiting = list(heads)

    def raw(write: Write, request: BaseHTTPRequestHandler) -> None:
        head = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        write(head + b"\r\n\r\n" + (server.content if body is None else body))

    server.raw = raw


def floods(server: FileServer, head: bytes, flood: bytes = b"x" * (1 << 20)) -> list[int]:
    """Have one request answered by a head and much after it; the bytes that were taken."""
    taken = [0]

    def raw(write: Write, request: BaseHTTPRequestHandler) -> None:
        write(head)
        while taken[0] < MUCH:
            write(flood)
            taken[0] += len(flood)

    server.raw = raw
    return taken


def test_nobody_reads_what_comes_with_a_redirect(server: FileServer) -> None:
    taken = floods(server, b"HTTP/1.1 302 Found\r\nLocation: /gone\r\n\r\n")
    first = server.raw

    def raw(write: Write, request: BaseHTTPRequestHandler) -> None:
        assert first is not None
        if request.path == "/gone":
            write(b"HTTP/1.1 404 Not\r\n\r\n")
        else:
            first(write, request)

    server.raw = raw
    with pytest.raises(AnespecError, match="there is no such file"):
        fetched(place(server))
    assert taken[0] < MUCH


@pytest.mark.parametrize("size", [b"-1", b"-5", b"+5", b"0x5", b"1_0", b"", b"f" * 16, b"5" * 9000])
def test_a_chunks_size_is_plain(server: FileServer, size: bytes, tmp_path: Path) -> None:
    taken = floods(
        server, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nGGUF\r\n" + size + b"\r\n"
    )
    with pytest.raises(StorageError, match="the connection broke"):
        fetched(place(server))
    assert taken[0] < MUCH
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    "flood", [b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 60_000]
)
def test_a_head_without_end(server: FileServer, flood: bytes) -> None:
    taken = floods(server, b"", flood)
    with pytest.raises(StorageError, match=r"cannot be reached \("):
        fetched(place(server))
    assert taken[0] < MUCH


def test_a_file_without_end_leaves_room(
    server: FileServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usage = shutil.disk_usage("/")
    free = iter(range(ROOM_KEPT + 500_000, 0, -1000))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=next(free)))
    taken = floods(server, b"HTTP/1.1 200 OK\r\n\r\nGGUF")
    with pytest.raises(StorageError, match=r"no room for more than 500.0 kB"):
        fetched(place(server))
    assert taken[0] < MUCH
    assert left(tmp_path) == [], "nobody could go on with it"


def test_room_is_kept_beside_a_file_of_known_length(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: usage._replace(free=ROOM_KEPT + len(server.content) - 1)
    )
    with pytest.raises(StorageError, match="has room for"):
        fetched(place(server))


def test_more_than_was_said_is_not_written(server: FileServer, tmp_path: Path) -> None:
    server.drops, server.etag = [9000], '"one"'
    first = server.content

    def raw(write: Write, request: BaseHTTPRequestHandler) -> None:
        if request.headers["Range"]:
            where = b"Content-Range: bytes 9000-%d/%d" % (len(first) - 1, len(first))
            write(b'HTTP/1.1 206 Part\r\nETag: "one"\r\n' + where + b"\r\n\r\n")
            for _ in range(MUCH >> 20):
                write(bytes(1 << 20))
        else:
            write(b'HTTP/1.1 200 OK\r\nETag: "one"\r\nContent-Length: %d\r\n\r\n' % len(first) + first[:9000])

    server.raw = raw
    with pytest.raises(StorageError, match="another size than it announced"):
        fetched(place(server))
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("said", "total"),
    [(b'ETag: "two"\r\n', 0), (b"", 0), (b'ETag: W/"one"\r\n', 0), (b'ETag: "one"\r\n', 1)],
)
def test_a_part_of_another_version_is_not_taken(server: FileServer, said: bytes, total: int) -> None:
    whole, asked = server.content, []

    def raw(write: Write, request: BaseHTTPRequestHandler) -> None:
        asked.append(request.headers["Range"])
        if len(asked) == 2:
            where = (9000, len(whole) - 1, len(whole) + total)
            write(b"HTTP/1.1 206 Part\r\nContent-Range: bytes %d-%d/%d\r\n" % where + said + b"\r\n")
            write(bytes(len(whole) - 9000))
        else:
            end = 9000 if len(asked) == 1 else len(whole)
            write(b'HTTP/1.1 200 OK\r\nETag: "one"\r\nContent-Length: %d\r\n\r\n' % len(whole) + whole[:end])

    server.raw = raw
    notes: list[str] = []
    assert fetched(place(server), ProgressCallbacks(note=notes.append)).read_bytes() == whole
    assert asked == [None, "bytes=9000-", None]
    assert "starts again" in notes[0]


def test_the_date_tells_versions_where_there_is_no_etag(server: FileServer) -> None:
    server.etag, server.modified, server.drops = None, "Mon, 01 Jan 2024 00:00:00 GMT", [9000]
    assert fetched(place(server)).read_bytes() == server.content
    assert server.asked[-1][1] == "bytes=9000-"


@pytest.mark.parametrize("length", [b"9" * 5000, b"9" * 400, b"-5", b"1e3", b"\xb2"])
def test_a_length_that_is_none(server: FileServer, length: bytes) -> None:
    answers(server, b"HTTP/1.1 200 OK\r\nContent-Length: " + length)
    with pytest.raises(StorageError, match="for the file's length"):
        fetched(place(server))


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"HTTP/1.1 304 Not", "another part than was requested"),
        (b"HTTP/1.1 416 Not", "another part than was requested"),
        (b"HTTP/1.1 206 Part\r\nContent-Range: bytes 0-3/4", "another part than was requested"),
        (b"HTTP/1.1 204 None", "status 204"),
        (b"HTTP/1.1 101 Switching", "status 101"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://[::1/x.gguf", "redirects to"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:99999999/x.gguf", "redirects to"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://a[::1].example.org/x.gguf", "redirects to"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://me:secret@127.0.0.1/x.gguf", "redirects to"),
        (b"HTTP/1.1 302 Found\r\nLocation: https://h.example:x/x.gguf?secret", "redirects to"),
        (b"HTTP/1.1 302 Found\r\nLocation: /files/llama.gguf", "more than 10 times"),
        (b"\x00\x01\x02", r"cannot be reached \("),
    ],
)
def test_answers_that_have_no_meaning(server: FileServer, head: bytes, said: str, tmp_path: Path) -> None:
    answers(server, head, body=b"")
    with pytest.raises(StorageError, match=said) as refused:
        fetched(place(server))
    assert "secret" not in str(refused.value)
    assert left(tmp_path) == []


def test_no_model_is_there_after_an_answer_that_was_not_asked_for(server: FileServer) -> None:
    found = fetch(place(server)).path
    answers(server, b"HTTP/1.1 304 Not", body=b"")
    assert fetched(place(server)) == found, "it was asked for, since a file is here"


def test_headers_of_no_line_are_not_sent_back(server: FileServer) -> None:
    whole, asked = server.content, []

    def raw(write: Write, request: BaseHTTPRequestHandler) -> None:
        asked.append(request.headers["Range"])
        head = b'HTTP/1.1 200 OK\r\nETag: "a\x1b\x00\x85\xff"\r\n b: c\r\nContent-Length: %d\r\n\r\n' % len(
            whole
        )
        write(head + whole[: 9000 if len(asked) == 1 else len(whole)])

    server.raw = raw
    assert fetched(place(server)).read_bytes() == whole
    assert asked == [None, None]


@pytest.mark.parametrize("etag", [r"a\r\nX-Evil: 1", "é☃"])
def test_a_changed_note_of_what_came_is_ignored(server: FileServer, etag: str, tmp_path: Path) -> None:
    server.drops = [9000, 0, 0, 0]
    with pytest.raises(StorageError):
        fetched(place(server))
    (facts,) = (tmp_path / "cache").rglob("partial.json")
    facts.write_text(facts.read_text().replace(r"\"one\"", etag))
    assert fetched(place(server)).read_bytes() == server.content


def test_letters_that_a_url_cannot_have(server: FileServer) -> None:
    name = UrlName.of(path_of("https://Bücher.example:8443/ök.gguf?x=ß"))
    assert name.url == "https://xn--bcher-kva.example:8443/%C3%B6k.gguf?x=%C3%9F"
    assert fetched(place(server, "/files/ök.gguf")).read_bytes() == server.content
    assert server.asked[-1][0] == "/files/%C3%B6k.gguf"


def test_hosts_that_are_none() -> None:
    assert not is_private("http://a[::1].example.org/x.gguf")
    assert is_private("http://[::1]:80/x.gguf")
    for url in ("http://a[::1].example.org/x.gguf", "http://127.0.0.1\\.example.org/x", "https://é..b/x"):
        with pytest.raises(UsageError, match="is not the URL"):
            UrlName.parse(url)


def test_this_machine_is_asked_without_a_proxy(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert fetched(place(server)).read_bytes() == server.content


def test_a_proxy_is_asked_for_other_machines(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    found = fetch(Path("http://models.example/llama.gguf"), allow_http=True).path
    assert found.read_bytes() == server.content
    assert server.asked[0][0] == "http://models.example/llama.gguf"


def test_secrets_of_a_url_are_not_shown(server: FileServer, caplog: pytest.LogCaptureFixture) -> None:
    assert shown_url("https://me:pw@h/a//b@c.gguf?token=SECRET") == "https://h/a//b@c.gguf?…"
    secret, notes = place(server, "/files/llama.gguf?token=SECRET"), []
    said: list[str] = []
    with caplog.at_level(logging.DEBUG):
        fetched(secret, ProgressCallbacks(note=notes.append))
        server.status = 503
        fetched(secret, ProgressCallbacks(note=notes.append))
        for status in (401, 404, 418):
            server.status = status
            with pytest.raises(AnespecError) as refused:
                fetched(secret)
            said.append(str(refused.value))
    assert "SECRET" not in "".join([caplog.text, *notes, *said])
    assert "llama.gguf?…" in caplog.text
    assert server.asked[0][0].endswith("?token=SECRET")


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\nGGUF", b""])
def test_a_trickle_ends(
    server: FileServer, head: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Whoever reads looks at the clock before and after, so each read takes a second, as the clock says.
    looks = itertools.count()
    monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: next(looks)))
    done, asked = threading.Event(), []

    def raw(write: Write, request: BaseHTTPRequestHandler) -> None:
        asked.append(None)
        write(head)
        while not done.wait(0.002):
            write(b"x")

    server.raw = raw
    try:
        with pytest.raises(StorageError, match=r"the connection broke|cannot be reached"):
            fetched(place(server))
    finally:
        done.set()
    # A read more than fit in the time ends a connection; two are of its head.
    assert next(looks) / 2 <= len(asked) * (connection.LEAST_SECONDS + 3)
    assert left(tmp_path) == []


PATIENT = """
from anespec.models.url import connection

connection.open_url.__kwdefaults__["patience"] = None
"""
"""Has a process wait for a server without end, so only a signal can end it."""


@pytest.mark.fast_only("2")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_end_that_is_asked_for_comes_at_once(
    server: FileServer, number: signal.Signals, tmp_path: Path
) -> None:
    asked, done = threading.Event(), threading.Event()

    def raw(write: Write, request: BaseHTTPRequestHandler) -> None:
        write(b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\nGGUF")
        asked.set()
        done.wait()

    server.raw = raw
    command = command_of("pull", "--no-convert", server.url + "/files/llama.gguf", before=PATIENT)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        try:
            assert asked.wait(PATIENCE)
            # Once it has the file's beginning, it waits for the rest.
            until(lambda: "partial" in left(tmp_path))
            process.send_signal(number)
            _, said = process.communicate(timeout=PATIENCE)
        finally:
            done.set()
            process.kill()
    assert process.returncode == 130
    assert "nothing is kept, so the next run starts from the beginning" in said
    assert left(tmp_path) == []


def test_a_second_run_says_what_it_waits_for(server: FileServer, tmp_path: Path) -> None:
    begun, done, notes = threading.Event(), threading.Event(), []

    def raw(write: Write, request: BaseHTTPRequestHandler) -> None:
        begun.set()
        done.wait()
        write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(server.content) + server.content)

    def note(text: str) -> None:
        notes.append(text)
        done.set()

    server.raw = raw
    first = threading.Thread(target=fetched, args=(place(server),))
    first.start()
    assert begun.wait(PATIENCE)
    second = threading.Thread(target=fetched, args=(place(server), ProgressCallbacks(note=note)))
    second.start()
    was_said = done.wait(PATIENCE)
    done.set()
    first.join()
    second.join()
    assert was_said
    assert notes == [f"{server.url}/files/llama.gguf: another anespec downloads it; waiting"]


def test_who_waited_for_a_download_that_failed_begins_it(server: FileServer, tmp_path: Path) -> None:
    begun, done, tries = threading.Event(), threading.Event(), []

    def raw(write: Write, request: BaseHTTPRequestHandler) -> None:
        tries.append(None)
        begun.set()
        done.wait()
        if len(tries) == 1:
            write(b"HTTP/1.1 404 Not\r\n\r\n")
        else:
            write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(server.content) + server.content)

    def first() -> None:
        with pytest.raises(AnespecError):
            fetched(place(server))

    server.raw = raw
    failing = threading.Thread(target=first)
    failing.start()
    assert begun.wait(PATIENCE)
    found: list[Path] = []
    watch = ProgressCallbacks(note=lambda _: done.set())
    waiting = threading.Thread(target=lambda: found.append(fetched(place(server), watch)))
    waiting.start()
    assert done.wait(PATIENCE)
    failing.join()
    waiting.join()
    assert found[0].read_bytes() == server.content
    assert len([name for name in left(tmp_path) if len(name) == 16]) == 1


def test_nothing_is_left_of_urls_that_failed(server: FileServer, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(AnespecError):
        fetched(place(server))
    with pytest.raises(UsageError):
        fetched(Path("http://models.example/model.gguf"))
    assert left(tmp_path) == []


@pytest.mark.parametrize(("ranges", "etag"), [(False, '"one"'), (True, '"two"')])
def test_a_download_that_begins_anew_says_so(server: FileServer, ranges: bool, etag: str) -> None:
    server.drops, notes = [9000, 0, 0, 0], []
    with pytest.raises(StorageError):
        fetched(place(server))
    server.ranges, server.etag = ranges, etag
    assert fetch(place(server), ProgressCallbacks(note=notes.append)).bytes == len(server.content)
    why = "has a new version of the file" if ranges else "does not support ranges"
    assert notes == [
        f"{server.url}/files/llama.gguf: the server {why}; the download starts again, without the 9.0 kB "
        "downloaded before"
    ]


def test_a_server_that_never_gets_further_is_given_up(server: FileServer) -> None:
    server.etag, server.drops = None, [9000] * 20
    with pytest.raises(StorageError, match="the connection broke; run the same command again, which starts"):
        fetched(place(server))
    assert len(server.asked) == download.MOST_VAIN_TRIES + 1


def test_an_interruption_says_what_is_kept(server: FileServer) -> None:
    came, done = threading.Event(), threading.Event()

    @contextlib.contextmanager
    def shares(title: str) -> Iterator[Progress]:
        yield lambda note, share=None: came.set() if note.startswith("5.0 kB of ") else None

    def raw(write: Write, request: BaseHTTPRequestHandler) -> None:
        write(b'HTTP/1.1 200 OK\r\nETag: "one"\r\nContent-Length: 9000\r\n\r\nGGUF' + bytes(5000))
        assert came.wait(PATIENCE)
        os.kill(os.getpid(), signal.SIGINT)
        # Python handles a signal between two instructions: a read that has just begun must return first.
        write(b"\0")
        done.wait()

    server.raw = raw
    try:
        with pytest.raises(
            Interrupted, match=r"is kept \(5.0 kB\), and the next run continues there if the server"
        ):
            fetched(place(server), ProgressCallbacks(shares=shares))
    finally:
        done.set()
