"""Models of the Hugging Face hub, over a stand-in for it: downloaded once, whole, and gone on with."""

import contextlib
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import CommandResult, command_of
from hub_server import Hub, serving

from anespec.models.downloads import downloads
from anespec.models.hub.name import HubName
from anespec.models.model_path import model_name
from anespec.models.remote import fetch, fetched
from anespec.system.errors import GGUFError, Interrupted, RequestError, StorageError, UsageError
from anespec.system.progress import ProgressCallbacks

CONTENT = b"GGUF" + bytes(range(256)) * 400
OLD = b"GGUF, an older one"
NAME = Path("hf:owner/repo/files/model.gguf")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    found = Hub(
        {"owner/repo": {"main": {"files/model.gguf": CONTENT, "README.md": b"#"}, "v1": {"model.gguf": OLD}}}
    )
    with serving(found):
        monkeypatch.setattr(constants, "ENDPOINT", found.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "none"))
        yield found


def shown(said: list[str]) -> ProgressCallbacks:
    @contextlib.contextmanager
    def display(title: str) -> Iterator[Callable[..., None]]:
        said.append(title)
        yield lambda note, share=None: said.append(f"{note}: {share:.2f}")

    return ProgressCallbacks(note=said.append, shares=display)


def test_a_file_is_downloaded_once_into_the_hubs_own_cache(hub: Hub, tmp_path: Path) -> None:
    said: list[str] = []
    found = fetched(NAME, shown(said))
    assert found.read_bytes() == CONTENT
    assert found.is_relative_to(tmp_path / "hub" / "models--owner--repo" / "snapshots")
    assert said[:2] == ["asking the hub for model.gguf", "downloading model.gguf"]
    assert said[-1].endswith(": 1.00")
    asked = [each for each in hub.asked if "/resolve/" in each]
    assert fetched(NAME) == found
    again = [each for each in hub.asked if "/resolve/" in each][len(asked) :]
    assert again == ["HEAD /owner/repo/resolve/main/files/model.gguf"], "whether there is a newer one"
    assert len(hub.ranges) == 1
    assert [path.name for path in found.resolve().parent.iterdir() if "incomplete" in path.name] == []


def test_a_revision(hub: Hub) -> None:
    assert fetched(Path("hf:owner/repo/model.gguf@v1")).read_bytes() == OLD
    commit = hub.commit("owner/repo", "v1")
    asked = len(hub.asked)
    assert fetched(Path(f"hf:owner/repo/model.gguf@{commit}")).read_bytes() == OLD
    assert len(hub.asked) == asked, "a commit never changes, so nobody is asked"


def test_a_download_is_listed_and_removed_by_its_name(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in (str(NAME), "hf:owner/repo/model.gguf@v1"):
        fetched(Path(name))
    found = {file.name: file for file in downloads()}
    assert found.keys() == {str(NAME), "hf:owner/repo/model.gguf"}
    assert found[str(NAME)].bytes == len(CONTENT)
    found[str(NAME)].remove()
    assert [file.name for file in downloads()] == ["hf:owner/repo/model.gguf"]
    assert [path.read_bytes() for path in blobs().iterdir()] == [OLD]
    assert fetched(NAME).read_bytes() == CONTENT


PARTS = {f"files/big-{number:05}-of-00003.gguf": b"GGUF" + bytes(1000 * number) for number in (1, 2, 3)}


def test_all_parts_of_a_model_are_downloaded_beside_each_other(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    hub.repositories["owner/repo"]["main"] |= PARTS
    first = next(iter(PARTS))
    found = fetch(Path(f"hf:owner/repo/{first}"))
    assert found.path.name == "big-00001-of-00003.gguf"
    assert found.bytes == sum(map(len, PARTS.values()))
    for name, content in PARTS.items():
        assert (found.path.parents[1] / name).read_bytes() == content
    asked = len([each for each in hub.asked if "/resolve/" in each])
    assert fetched(Path(f"hf:owner/repo/{first}")) == found.path
    assert len([each for each in hub.asked if "/resolve/" in each]) == asked + 1, "the first alone"
    hub.status = 503
    assert fetched(Path(f"hf:owner/repo/{first}")) == found.path
    (listed,) = downloads()
    assert (listed.name, listed.bytes) == (f"hf:owner/repo/{first}", found.bytes)
    listed.remove()
    assert not downloads()


def test_a_download_of_some_parts_is_incomplete(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first, second, _ = PARTS
    hub.repositories["owner/repo"]["main"] |= {name: PARTS[name] for name in (first, second)}
    with pytest.raises(RequestError, match=r"big-00003-of-00003.gguf"):
        fetch(Path(f"hf:owner/repo/{first}"))
    assert [file.finished for file in downloads()] == [False]
    with pytest.raises(GGUFError, match=r"is part 2 of 3; give the first, files/big-00001-of-00003.gguf"):
        fetch(Path(f"hf:owner/repo/{second}"))


def test_the_parts_are_of_one_commit(hub: Hub) -> None:
    hub.repositories["owner/repo"]["main"] |= PARTS
    first, *others = PARTS
    fetch(Path(f"hf:owner/repo/{first}"))
    commit = hub.commit("owner/repo", "main")
    asked = [each.rpartition("resolve/")[2] for each in hub.asked if each.startswith("HEAD")]
    assert asked == [f"main/{first}", *(f"{commit}/{name}" for name in others)]


def test_without_the_hub_what_was_downloaded_is_used(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    found = fetched(NAME)
    hub.status = 503
    assert fetched(NAME) == found


def test_a_connection_that_breaks_is_gone_on_with(hub: Hub) -> None:
    hub.drops = [1000, 5000]
    assert fetched(NAME).read_bytes() == CONTENT
    assert hub.ranges == [None, "bytes=1000-", "bytes=6000-"]


def test_the_next_run_goes_on_where_one_was_interrupted(hub: Hub) -> None:
    @contextlib.contextmanager
    def display(title: str) -> Iterator[Callable[..., None]]:
        def report(note: str, share: float | None = None) -> None:
            raise KeyboardInterrupt

        yield report

    with pytest.raises(Interrupted, match="is kept"):
        fetched(NAME, ProgressCallbacks(shares=display))
    (partial,) = blobs().iterdir()
    partial.write_bytes(CONTENT[:3000])
    assert fetched(NAME).read_bytes() == CONTENT
    assert hub.ranges[-1] == "bytes=3000-"


def blobs() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / "models--owner--repo" / "blobs"


def test_what_is_damaged_is_not_used(hub: Hub) -> None:
    hub.lies = True
    with pytest.raises(StorageError, match="does not have the hash"):
        fetched(NAME)
    assert list(blobs().iterdir()) == []
    hub.lies = False
    assert fetched(NAME).read_bytes() == CONTENT


def test_more_than_the_hub_said_is_not_taken(hub: Hub) -> None:
    hub.said_size = 2000
    with pytest.raises(StorageError, match="sends more than the 2000 bytes"):
        fetched(NAME)
    assert sum(path.stat().st_size for path in blobs().iterdir()) <= 2000


@pytest.mark.parametrize("said", ["../../../escaped", "a/b", "."])
def test_a_hash_that_leads_elsewhere_is_refused(hub: Hub, said: str, tmp_path: Path) -> None:
    for field in ("said_etag", "said_commit"):
        setattr(hub, field, said)
        with pytest.raises((StorageError, RequestError)):
            fetched(NAME)
        setattr(hub, field, None)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 1000]


def test_a_gated_one_needs_a_token_that_its_store_never_sees(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.gated.add("owner/repo")
    with pytest.raises(RequestError, match="gated; accept its terms"):
        fetched(NAME)
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert fetched(NAME).read_bytes() == CONTENT
    assert hub.tokens == [None]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hf:owner/other/model.gguf", "no such repository"),
        ("hf:owner/repo/other.gguf", "it has files/model.gguf"),
        ("hf:owner/repo/model.gguf@v7", "no revision v7"),
    ],
)
def test_what_the_hub_does_not_have(hub: Hub, name: str, said: str) -> None:
    with pytest.raises(RequestError) as refused:
        fetched(Path(name))
    assert str(refused.value).startswith(f"{name}: ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_repository_alone_gives_its_best_file(hub: Hub) -> None:
    hub.repositories["owner/many"] = {
        "main": {
            "Tiny-Q4_K_M.gguf": OLD,
            "Tiny-Q8_0.gguf": CONTENT,
            "mmproj-Tiny-Q8_0.gguf": OLD,
            "../../escaped-Q8_0.gguf": OLD,
            "README.md": b"#",
        }
    }
    said: list[str] = []
    found = fetch(Path("hf:owner/many"), ProgressCallbacks(note=said.append))
    assert found.path.read_bytes() == CONTENT
    assert (found.origin, found.bytes) == ("hf:owner/many/Tiny-Q8_0.gguf", len(CONTENT))
    assert said == [
        "hf:owner/many: chose Tiny-Q8_0.gguf (102.4 kB), Q8_0, which is preferred; "
        "hf:owner/many:QUANTISATION takes another (Q4_K_M)"
    ]
    assert fetched(Path("hf:owner/many:q4_k_m")).read_bytes() == OLD
    with pytest.raises(RequestError, match="has no 'Q6_K'; it has Q4_K_M and Q8_0"):
        fetched(Path("hf:owner/many:Q6_K"))
    hub.status = 503
    assert fetched(Path("hf:owner/many")) == found.path, "of what was downloaded before"


@pytest.mark.parametrize(
    ("name", "said"),
    [("hf:owner/other", "no such repository"), ("hf:owner/repo@v7", "no revision v7")],
)
def test_a_repository_that_is_not_there(hub: Hub, name: str, said: str) -> None:
    with pytest.raises(RequestError, match=said):
        fetched(Path(name))


def test_a_hub_that_is_down(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(StorageError, match="cannot be reached"):
        fetched(NAME)


def test_a_hub_that_nobody_reaches_is_one_sentence(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    heard: list[logging.LogRecord] = []
    listener = logging.Handler()
    listener.emit = heard.append  # type: ignore[method-assign]
    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "handlers", [listener])
    for name, asked in ((NAME, "model.gguf"), (Path("hf:owner/repo"), "owner/repo")):
        said: list[str] = []
        with pytest.raises(StorageError) as refused:
            fetched(name, shown(said))
        assert str(refused.value).startswith(f"{name}: the hub cannot be reached at 127.0.0.1:9 (")
        assert "goes on" not in str(refused.value), "nothing came that there is to go on with"
        assert (heard, said) == ([], [f"asking the hub for {asked}"])


def test_a_full_disk_is_said_before_anything_comes(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(StorageError, match="has room for 100 B"):
        fetched(NAME)
    assert hub.ranges == []


@pytest.mark.parametrize(
    "text",
    [
        "hf:",
        "hf:a",
        "hf:a/b:",
        "hf:a/b:Q8/x",
        "hf:a/b/c.bin",
        "hf:a/b/../c.gguf",
        "hf:a/b/c.gguf@",
        "hf:a/b/c.gguf@../../c",
        "hf:a/b--c/d.gguf",
        "hf:../b/c.gguf",
        "hf:a/b./c.gguf",
    ],
)
def test_what_names_no_file(text: str) -> None:
    with pytest.raises(UsageError, match="is not a file of the hub"):
        HubName.parse(text)


def test_names() -> None:
    assert HubName.parse("hf:a/b/c/d-Q8_0.gguf@refs/pr/1") == HubName("a/b", "c/d-Q8_0.gguf", "refs/pr/1")
    assert HubName.parse("hf:a/b.c-GGUF") == HubName("a/b.c-GGUF")
    assert HubName.parse("hf:a/b:q8_0@v1") == HubName("a/b", None, "v1", "q8_0")
    assert model_name(Path("hf:a/b/c/d-Q8_0.gguf@v1")) == "d-Q8_0"
    assert model_name(Path("hf:a/b-GGUF:Q4_K_M")) == "b-Q4_K_M"
    assert fetched(Path("model.gguf")) == Path("model.gguf")


@pytest.mark.slow
def test_verbs_take_one(hub: Hub, gguf: Path, tmp_path: Path) -> None:
    hub.repositories["owner/repo"]["main"]["llama.gguf"] = gguf.read_bytes()
    environment = dict(os.environ) | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
    arguments = ("inspect", "hf:owner/repo/llama.gguf", "--json")
    done = subprocess.run(
        command_of(*arguments), env=environment, capture_output=True, text=True, check=False
    )
    outcome = CommandResult(done.returncode, done.stdout, done.stderr)
    assert outcome.code == 0, outcome.err
    assert outcome.json["architecture"] == "llama"
