"""GGUFs at URLs, over a server that misbehaves as they do: brought once, whole, checked, and gone on with."""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from commands import CommandResult, command_of
from file_server import FileServer, downloading_from, place
from filelock import FileLock
from gguf_parts import write_parts

from anespec.cli.verbs.cache import list_models, remove_models
from anespec.gguf.container import GGUFFile
from anespec.gguf.parts import part_paths
from anespec.models.model_path import model_name
from anespec.models.remote import fetch, fetched, is_remote
from anespec.models.url.name import UrlName, path_of
from anespec.system.errors import (
    AnespecError,
    GGUFError,
    Interrupted,
    RequestError,
    StorageError,
    UsageError,
)
from anespec.system.progress import ProgressCallbacks


@pytest.fixture
def server(gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with downloading_from(gguf.read_bytes(), tmp_path / "cache", monkeypatch) as facts:
        yield facts


def test_all_parts_of_a_model_are_brought(server: FileServer, gguf: Path, tmp_path: Path) -> None:
    paths = part_paths(write_parts(gguf, tmp_path, 2, stem="big"))
    server.others = {f"/files/{path.name}": path.read_bytes() for path in paths}
    found = fetch(place(server, f"/files/{paths[0].name}"))
    assert found.bytes == sum(path.stat().st_size for path in paths)
    with GGUFFile(found.path) as file, GGUFFile(gguf) as whole:
        assert file.tensors.keys() == whole.tensors.keys()
    assert fetch(place(server, f"/files/{paths[0].name}")).bytes == 0
    with pytest.raises(GGUFError, match=r"is part 2 of 2; give the first, /files/big-00001-of-00002.gguf"):
        fetch(place(server, f"/files/{paths[1].name}"))
    with pytest.raises(UsageError, match="the model has 2 parts, and what stands after # is the hash of one"):
        fetch(place(server, f"/files/{paths[0].name}#sha256={'0' * 64}"))


def left(tmp_path: Path) -> list[str]:
    """What lies in the folder of downloads, but for locks."""
    files = (tmp_path / "cache").rglob("*")
    return sorted(path.name for path in files if path.is_file() and path.name != "lock")


def test_a_file_is_brought_once(server: FileServer, tmp_path: Path) -> None:
    said: list[str] = []

    @contextlib.contextmanager
    def shares(title: str) -> "Iterator[object]":
        said.append(title)
        yield lambda note, share=None: said.append(f"{note}: {share}")

    first = fetch(place(server), ProgressCallbacks(shares=shares))  # type: ignore[arg-type]
    assert first.path.read_bytes() == server.content
    assert first.path.name == "llama.gguf"
    assert (first.origin, first.bytes) == (server.url + "/files/llama.gguf", len(server.content))
    assert said[0] == "downloading llama.gguf"
    assert any(each.endswith(": 1.0") for each in said)
    again = fetch(place(server))
    assert (again.path, again.bytes) == (first.path, 0)
    assert server.asked[-1] == ("/files/llama.gguf", None, '"one"'), "whether there is a newer one"
    assert left(tmp_path) == ["kept.json", "llama.gguf"]


def test_a_newer_file_takes_its_place(server: FileServer) -> None:
    old = fetched(place(server)).read_bytes()
    server.content, server.etag = server.content + bytes(32), '"two"'
    assert old[:4] == b"GGUF"
    with pytest.raises(GGUFError, match="not a complete GGUF"):
        fetched(place(server))  # bytes that no tensor has
    server.content = server.content[:-32]
    assert fetch(place(server)).bytes == len(server.content)


def test_what_is_here_is_used_where_the_server_is_away(server: FileServer) -> None:
    found = fetched(place(server))
    server.status = 503
    assert fetched(place(server)) == found


@pytest.mark.parametrize("lengths", [True, False])
def test_a_connection_that_breaks_is_gone_on_with(server: FileServer, lengths: bool) -> None:
    server.lengths, server.drops = lengths, [5000, 7000]
    assert fetched(place(server)).read_bytes() == server.content
    assert [asked for _, asked, _ in server.asked] == [None, "bytes=5000-", "bytes=12000-"]


def test_the_next_run_goes_on_where_one_ended(server: FileServer, tmp_path: Path) -> None:
    server.drops = [9000, 0, 0, 0]
    with pytest.raises(StorageError, match=r"broke after 9.0 kB; run the same command again"):
        fetched(place(server))
    assert left(tmp_path) == ["partial", "partial.json"]
    came = fetch(place(server)).bytes
    assert came == len(server.content) - 9000
    assert server.asked[-1][1] == "bytes=9000-"


def test_a_file_that_changed_meanwhile_begins_anew(server: FileServer) -> None:
    server.drops = [9000, 0, 0, 0]
    with pytest.raises(StorageError):
        fetched(place(server))
    server.etag = '"two"'
    assert fetch(place(server)).bytes == len(server.content)
    assert fetched(place(server)).read_bytes() == server.content


@pytest.mark.parametrize(("etag", "modified"), [(None, None), ('W/"weak"', None)])
def test_without_a_word_on_the_bytes_nothing_is_gone_on_with(
    server: FileServer, etag: str | None, modified: str | None
) -> None:
    server.etag, server.modified, server.drops = etag, modified, [9000]
    assert fetched(place(server)).read_bytes() == server.content
    assert [asked for _, asked, _ in server.asked] == [None, None]


def test_beginning_anew_is_said(server: FileServer) -> None:
    server.drops = [9000, 0, 0, 0]
    with pytest.raises(StorageError):
        fetched(place(server))
    notes: list[str] = []
    server.ranges = False
    fetched(place(server), ProgressCallbacks(note=notes.append))
    (note,) = notes
    assert "starts again, without the 9.0 kB downloaded before" in note


def test_what_was_never_there_leaves_no_folder(server: FileServer, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(RequestError):
        fetched(place(server))
    assert list((tmp_path / "cache" / "anespec" / "downloads" / "urls").iterdir()) == []


def test_downloads_are_listed_by_url_and_removed(server: FileServer, tmp_path: Path) -> None:
    fetched(place(server))
    server.drops = [9000, 0, 0, 0]
    with pytest.raises(StorageError):
        fetched(place(server, "/files/other.gguf"))
    whole, begun = (f"{server.url}/files/{name}.gguf" for name in ("llama", "other"))
    shown = {file["name"]: file for file in json.loads(invoke(list_models, "--json"))["downloads"]}
    assert {name: file["finished"] for name, file in shown.items()} == {whole: True, begun: False}
    assert shown[whole]["bytes"] >= len(server.content) > shown[begun]["bytes"] > 9000
    table = invoke(list_models)
    assert whole in table
    assert "interrupted" in table
    assert "0 models and 1 download removed" in invoke(remove_models, whole, "--yes")
    assert left(tmp_path) == ["partial", "partial.json"]
    invoke(remove_models, "--all", "--yes")
    assert left(tmp_path) == []
    assert "rm NAME" not in invoke(list_models)


def invoke(verb: click.Command, *arguments: str) -> str:
    result = CliRunner().invoke(verb, arguments)
    assert result.exception is None, result.output
    return result.stdout


def test_a_server_without_ranges_gives_all_again(server: FileServer) -> None:
    server.ranges, server.drops = False, [9000]
    assert fetched(place(server)).read_bytes() == server.content


def test_what_came_is_longer_than_the_file_now(server: FileServer, tmp_path: Path) -> None:
    server.drops = [9000, 0, 0, 0]
    with pytest.raises(StorageError):
        fetched(place(server))
    (partial,) = (tmp_path / "cache").rglob("partial")
    partial.write_bytes(server.content + b"more")
    assert fetched(place(server)).read_bytes() == server.content


def test_an_interrupted_run_keeps_what_came(server: FileServer, tmp_path: Path) -> None:
    @contextlib.contextmanager
    def shares(title: str) -> "Iterator[object]":
        def report(note: str, share: float | None = None) -> None:
            if share is not None and share > 0.3:
                raise KeyboardInterrupt

        yield report

    with pytest.raises(Interrupted, match="is kept"):
        fetched(place(server), ProgressCallbacks(shares=shares))  # type: ignore[arg-type]
    assert fetch(place(server)).bytes < len(server.content)


def test_the_hash_that_the_url_says(server: FileServer, tmp_path: Path) -> None:
    digest = hashlib.sha256(server.content).hexdigest()
    with pytest.raises(StorageError, match="the URL says 0000000000000000"):
        fetched(place(server, f"/files/llama.gguf#sha256={'0' * 64}"))
    assert left(tmp_path) == []
    pinned = place(server, f"/files/llama.gguf#sha256={digest}")
    assert fetched(pinned).read_bytes() == server.content
    asked = len(server.asked)
    assert fetched(pinned).read_bytes() == server.content
    assert len(server.asked) == asked, "no other bytes would be taken"


def test_the_hash_that_a_hub_says_on_the_way(server: FileServer, tmp_path: Path) -> None:
    server.linked = "1" * 64
    with pytest.raises(StorageError, match="the server says 1111111111111111"):
        fetched(place(server, "/moved/llama.gguf"))
    assert left(tmp_path) == []
    server.linked = hashlib.sha256(server.content).hexdigest()
    assert fetched(place(server, "/moved/llama.gguf")).read_bytes() == server.content


def test_a_wrong_size(server: FileServer, tmp_path: Path) -> None:
    server.said_bytes = 3000
    with pytest.raises(GGUFError, match="not a complete GGUF"):
        fetched(place(server))
    assert left(tmp_path) == []
    server.said_bytes = len(server.content) + 10
    with pytest.raises(StorageError, match="another size than it announced"):
        fetched(place(server))


def test_a_web_page_is_no_model(server: FileServer, tmp_path: Path) -> None:
    server.content = b"<!doctype html><title>Sign in</title>" * 100
    with pytest.raises(GGUFError, match="perhaps a web page"):
        fetched(place(server))
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (401, RequestError, "requires a login"),
        (403, RequestError, "requires a login"),
        (404, RequestError, "there is no such file"),
        (500, StorageError, "status 500; try again later"),
        (418, StorageError, "status 418"),
    ],
)
def test_servers_that_say_no(
    server: FileServer, status: int, kind: type[AnespecError], said: str, tmp_path: Path
) -> None:
    server.status = status
    with pytest.raises(kind, match=said) as refused:
        fetched(place(server))
    assert str(refused.value).startswith(server.url)
    assert "\n" not in str(refused.value)
    assert left(tmp_path) == []


def test_a_server_that_is_not_there(server: FileServer) -> None:
    with pytest.raises(StorageError, match=r"cannot be reached \(Connection refused\)"):
        fetched(Path("http://127.0.0.1:9/model.gguf"))


@pytest.mark.parametrize(
    "away", ["http://models.example/model.gguf", "file:///etc/passwd", "ftp://127.0.0.1/model.gguf"]
)
def test_redirects_to_where_nothing_is_safe(server: FileServer, away: str) -> None:
    server.away = away
    with pytest.raises(AnespecError, match=r"redirects to|cannot be reached|status 302"):
        fetched(place(server, "/away"))
    assert [path for path, _, _ in server.asked] == ["/away"]


def test_plain_http_from_elsewhere_is_a_choice(server: FileServer) -> None:
    with pytest.raises(UsageError, match="--allow-http"):
        fetched(Path("http://models.example/model.gguf"))


def test_a_full_disk_is_said_before_anything_comes(
    server: FileServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(StorageError, match="has room for 100 B"):
        fetched(place(server))
    assert left(tmp_path) == []


def test_a_disk_that_fills_up_meanwhile(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open

    def full(path: Path, *arguments: object, **named: object) -> object:
        stream = real(path, *arguments, **named)  # type: ignore[call-overload]
        if path.name != "partial":
            return stream
        stream.close()
        return real(Path("/dev/full"), "r+b", buffering=0)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StorageError, match="No space left"):
        fetched(place(server))


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://host/a/b/Model-Q8_0.gguf?download=true", "Model-Q8_0.gguf"),
        ("https://host/..%2F..%2Fetc%2Fpasswd", "passwd.gguf"),
        ("https://host/%00%1b[31m.gguf", "___31m.gguf"),
        ("https://host", "model.gguf"),
        ("https://host/....gguf", "gguf.gguf"),
        (f"https://host/{'a' * 400}.gguf", f"{'a' * 128}.gguf"),
    ],
)
def test_the_name_of_a_file_follows_no_path(url: str, name: str) -> None:
    assert UrlName.of(path_of(url)).name == name
    assert model_name(path_of(url)) == name.removesuffix(".gguf")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https:///?model.gguf", "is not the URL of a file"),
        ("https://[::1/model.gguf", "is not the URL of a file"),
        ("https://host:port/model.gguf", "is not the URL of a file"),
        ("https://me:secret@host/model.gguf", "contains a user's name"),
        ("https://host/model.gguf#sha256=12", "the part after # is not a hash"),
        ("https://host/a//b.gguf", "%2F%2F"),
    ],
)
def test_what_is_no_url_of_a_file(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        UrlName.of(path_of(url))
    assert "secret" not in str(refused.value)


def test_what_stands_for_another_machine() -> None:
    assert is_remote(path_of("https://host/model.gguf"))
    assert not is_remote(Path("https.gguf"))
    assert UrlName.of(path_of("https://host:8443/a/b.gguf?x=1")).url == "https://host:8443/a/b.gguf?x=1"


@pytest.mark.slow
def test_verbs_take_one(server: FileServer, tmp_path: Path) -> None:
    url = server.url + "/moved/llama.gguf"
    done = subprocess.run(
        command_of("inspect", url, "--json"), env=os.environ, capture_output=True, text=True, check=False
    )
    outcome = CommandResult(done.returncode, done.stdout, done.stderr)
    assert outcome.code == 0, outcome.err
    assert outcome.json["architecture"] == "llama"


def test_a_folder_that_vanishes_while_it_is_locked_is_made_anew(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another download ends between filelock's two looks at the folder."""
    acquire, vanished = FileLock.acquire, []

    def vanishing(lock: FileLock, *arguments: object, **options: object) -> object:
        if not vanished:
            vanished.append(Path(lock.lock_file).parent)
            vanished[0].rmdir()
            raise FileExistsError(17, "File exists", str(vanished[0]))
        return acquire(lock, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(FileLock, "acquire", vanishing)
    assert fetch(place(server)).path.read_bytes() == server.content
    assert vanished
