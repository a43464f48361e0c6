"""`anespec serve` as a process: ready when it says so, found by ps, and gone without a trace."""

import contextlib
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from click.testing import CliRunner
from commands import run
from daemons import Started, started
from patience import PATIENCE
from waiting import until

from anespec.cli.main import cli
from anespec.system.errors import StorageError, UsageError

KEY, OTHER_KEY = "one:0123456789abcdef", "two:fedcba9876543210"
SECRET, OTHER_SECRET = KEY[4:], OTHER_KEY[4:]


def write_keys(path: Path, *keys: str) -> None:
    path.write_text("\n".join(keys))
    path.chmod(0o600)


@pytest.fixture(scope="module")
def daemon(measured: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    folder = tmp_path_factory.mktemp("daemon")
    write_keys(folder / "keys", KEY)
    (folder / "serve.toml").write_text(f'api_key_file = "keys"\n[models]\ntiny = "{measured}"\n')
    with started(folder, "--config", "serve.toml", ANESPEC_SERVE_DRAIN_SECONDS="3") as found:
        yield found


@pytest.mark.slow
def test_it_is_ready_when_it_says_so(daemon: Started) -> None:
    assert daemon.ready.startswith("Serving tiny at http://127.0.0.1:")
    assert daemon.get("/health").status_code == 200
    assert daemon.models(SECRET) == {"tiny": True}
    assert daemon.get("/v1/models").status_code == 401


@pytest.mark.slow
def test_ps_shows_it_and_nobody_else_may_read_that(daemon: Started) -> None:
    (record,) = daemon.command("ps", "--json").json["daemons"]
    assert (record["pid"], record["address"]) == (daemon.process.pid, daemon.url)
    assert record["models"] == ["tiny"]
    assert daemon.url in daemon.command("ps").out
    (file,) = (Path(daemon.environment["XDG_STATE_HOME"]) / "anespec" / "daemons").iterdir()
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="no limits of other processes here")
def test_without_a_file_left_for_connections_its_log_has_no_tracebacks(daemon: Started) -> None:
    pid = daemon.process.pid
    before, limits = len(daemon.log.read_text()), resource.prlimit(pid, resource.RLIMIT_NOFILE)
    host, port = daemon.url.removeprefix("http://").split(":")
    with contextlib.ExitStack() as held:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (psutil.Process(pid).num_fds() + 2, limits[1]))
        held.callback(resource.prlimit, pid, resource.RLIMIT_NOFILE, limits)
        for _ in range(20):
            client = held.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex((host, int(port)))
        until(lambda: "no further connection can be accepted" in daemon.log.read_text()[before:])
    assert daemon.get("/health").status_code == 200
    assert "Traceback" not in daemon.log.read_text()[before:]


@pytest.mark.slow
def test_it_reads_models_and_keys_again(daemon: Started, measured: Path) -> None:
    folder = daemon.log.parent
    before = (folder / "serve.toml").read_text()
    (folder / "serve.toml").write_text(before + f'second = "{measured}"\n')
    write_keys(folder / "keys", KEY, OTHER_KEY)
    os.kill(daemon.process.pid, signal.SIGHUP)
    until(lambda: daemon.get("/v1/models", OTHER_SECRET).status_code == 200)
    assert daemon.models(OTHER_SECRET) == {"tiny": True, "second": False}
    (record,) = daemon.command("ps", "--json").json["daemons"]
    assert record["models"] == ["tiny", "second"]
    (folder / "serve.toml").write_text("what = \n")
    os.kill(daemon.process.pid, signal.SIGHUP)
    until(lambda: "is not valid TOML" in daemon.log.read_text())
    assert daemon.models(SECRET) == {"tiny": True, "second": False}


@pytest.mark.slow
def test_a_second_one_at_its_port_is_told_whose_that_is(daemon: Started, measured: Path) -> None:
    port = daemon.url.rpartition(":")[2]
    for host in ("127.0.0.1", "localhost"):
        refused = daemon.command("serve", measured, "--host", host, "--port", port)
        assert refused.code == 2 and refused.ends_in_one_sentence(), refused.err
        assert f"{daemon.url}: an anespec daemon of yours listens there" in refused.err
        for said in (f"(pid {daemon.process.pid}) and serves tiny", "`anespec ps`", "`anespec stop "):
            assert said in refused.err
    with socket.create_server(("127.0.0.1", 0)) as other:
        refused = daemon.command("serve", measured, "--port", other.getsockname()[1])
        assert "another program listens there" in refused.err


@pytest.mark.slow
def test_a_model_that_is_not_there_is_told_at_the_start(measured: Path, tmp_path: Path) -> None:
    with started(tmp_path, measured, "--model", "small=typo.gguf") as found:
        note = "note: typo.gguf: is no file, no folder and no model in the cache (`anespec list`), so there"
        assert note in found.log.read_text()
        asked = {"model": "small", "prompt": "a"}
        assert httpx.post(f"{found.url}/v1/completions", json=asked, timeout=PATIENCE).status_code == 500
        assert "/v1/completions failed: typo.gguf: is no file" in found.log.read_text()
        assert found.log.read_text().count("no model in the cache") == 2
        assert "Traceback" not in found.log.read_text()


HELD = """
import time
from pathlib import Path
from anespec.serving.loader import ArtifactLoader

load = ArtifactLoader.load

def load_later(*arguments):
    while not Path("seen").exists():
        time.sleep(0.01)
    return load(*arguments)

ArtifactLoader.load = load_later
"""
"""Has a daemon load nothing before there is the file `seen` in its folder."""


def watch_health(socket: Path, seen: list[tuple[int, int]]) -> None:
    """Ask until it is ready whether it is, and whether it runs; it loads its model after the first answer."""
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://localhost") as client:
        while not seen or seen[-1][1] != 200:
            with contextlib.suppress(httpx.HTTPError):
                seen.append((client.get("/livez").status_code, client.get("/health").status_code))
                (socket.parent / "seen").touch()
            time.sleep(0.01)


@pytest.mark.slow
def test_stop_ends_it_and_it_leaves_nothing(measured: Path, tmp_path: Path) -> None:
    socket = tmp_path / "s.sock"
    seen: list[tuple[int, int]] = []
    watching = threading.Thread(target=watch_health, args=(socket, seen), daemon=True)
    watching.start()
    with started(tmp_path, measured, "--unix", socket, before=HELD) as daemon:
        watching.join(PATIENCE)
        assert seen[0] == (200, 503) and seen[-1] == (200, 200)
        assert f"unix:{socket}" in daemon.ready
        assert socket.stat().st_mode & 0o077 == 0
        second = daemon.command("serve", measured, "--unix", socket)
        assert second.code == 2 and second.ends_in_one_sentence(), second.err
        assert (
            f"unix:{socket}: an anespec daemon of yours listens there (pid {daemon.process.pid})"
            in second.err
        )
        assert "choose another --unix path" in second.err
        assert daemon.command("stop", "nobody").is_one_sentence()
        stopped = daemon.command("stop", "--json")
        assert stopped.json == {"stopped": [daemon.process.pid], "forced": []}
        assert daemon.process.wait(PATIENCE) == 0
        assert not socket.exists()
        assert daemon.command("ps", "--json").json == {"daemons": []}
        assert daemon.command("stop").code == 2


@pytest.mark.slow
def test_what_goes_wrong_at_the_start_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    socket = tmp_path / "s.sock"
    (tmp_path / "empty.anespec").mkdir()
    outcome = run("serve", "empty.anespec", "--unix", socket, cwd=tmp_path)
    assert outcome.code == 5
    assert outcome.ends_in_one_sentence(), outcome.err
    assert outcome.err.count("is not an artifact") == 1
    assert outcome.out == ""
    assert not socket.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name one"),
        (("a", "--model", "a=b"), "two models have the name 'a'"),
        (("a", "--model", "b"), "is not NAME=MODEL"),
        (("a", "--config", "none.toml"), "none.toml: cannot be read"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_loaded(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(cli, ["serve", *arguments], standalone_mode=False).exception
    assert isinstance(refused, UsageError | StorageError)
    assert said in str(refused)
