"""What has the system start a daemon says what was asked for, in words that the system reads back."""

import plistlib
import shlex
import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE

from anespec.cli.main import cli
from anespec.serving.start import READY, tell_system
from anespec.serving.units import MARK, Job, Unit, install, uninstall, unit_for
from anespec.system.errors import UsageError

JOB = Job(("/usr/bin/python", "-m", "anespec", "serve", "a b.gguf"), {"HF_HOME": "/hub"}, 46)


def lines(unit: Unit) -> dict[str, str]:
    """The settings of a systemd unit."""
    found = [line.partition("=") for line in unit.text.splitlines() if "=" in line]
    return {name: value for name, _, value in found}


def read_words(text: str) -> list[str]:
    """A command as systemd reads it: words in quotes, with %% and $$ for % and $."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(text)]


def test_the_agent() -> None:
    unit = unit_for("darwin", JOB)
    assert unit.path == Path.home() / "Library/LaunchAgents/anespec.serve.plist"
    found = plistlib.loads(unit.text.encode())
    assert found["ProgramArguments"] == list(JOB.command)
    assert found["EnvironmentVariables"] == {"HF_HOME": "/hub"}
    assert found["ExitTimeOut"] == 46
    assert found["KeepAlive"] == {"SuccessfulExit": False}
    assert found["RunAtLoad"] is True
    assert MARK in unit.text


def test_the_unit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    unit = unit_for("linux", JOB)
    assert unit.path == tmp_path / "systemd/user/anespec.service"
    found = lines(unit)
    assert read_words(found["ExecStart"]) == list(JOB.command)
    assert found["Environment"] == '"HF_HOME=/hub"'
    assert (found["Type"], found["Restart"], found["KillSignal"]) == ("notify", "on-failure", "SIGTERM")
    assert found["TimeoutStopSec"] == "46"
    assert found["RestartPreventExitStatus"] == "2 3 4 5 7 8"


@given(st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), min_size=1))
def test_any_printable_word_is_read_back(word: str) -> None:
    job = Job((word,), {}, 1)
    assert read_words(lines(unit_for("linux", job))["ExecStart"]) == [word]
    assert plistlib.loads(unit_for("darwin", job).text.encode())["ProgramArguments"] == [word]


def test_a_variable_is_what_it_was() -> None:
    """systemd replaces `$NAME` in commands, and in no value of a variable."""
    job = Job(("a",), {"HF_HOME": '/a$b%c"d\\e'}, 1)
    assert lines(unit_for("linux", job))["Environment"] == r'"HF_HOME=/a$b%%c\"d\\e"'


def test_what_no_file_can_say_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot hold"):
        unit_for("linux", Job(("a\nb",), {}, 1))
    with pytest.raises(UsageError, match="cannot be installed"):
        unit_for("win32", JOB)


def test_it_replaces_nothing_that_differs_unless_it_must(tmp_path: Path) -> None:
    unit = Unit(tmp_path / "units" / "a.service", f"# {MARK}\none\n", (), ())
    assert install(unit, force=False)
    assert not install(unit, force=False)
    other = Unit(unit.path, f"# {MARK}\ntwo\n", (), ())
    with pytest.raises(UsageError, match="exists with other content; --force"):
        install(other, force=False)
    assert install(other, force=True)
    assert uninstall(unit.path, force=False)
    assert not uninstall(unit.path, force=False)


def test_what_another_wrote_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.service"
    path.write_text("somebody's")
    with pytest.raises(UsageError, match="not written by anespec"):
        install(Unit(path, "ours", (), ()), force=False)
    with pytest.raises(UsageError, match="not written by anespec"):
        uninstall(path, force=False)
    assert path.read_text() == "somebody's"


def test_the_verb_writes_what_was_typed_with_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("ANESPEC_SERVE_QUEUE", "5")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.chdir(tmp_path)
    for name in ("m.gguf", "s.gguf"):
        (tmp_path / name).touch()
    (tmp_path / "serve.toml").write_text("port = 1\n")
    typed = ["m.gguf", "--model", "s=s.gguf", "--preload", "--body-bytes", "2MB", "--config", "serve.toml"]
    typed += ["--allow-host", "a", "--allow-host", "b", "--drain-seconds", "100", "--install"]
    runner = CliRunner()
    printed = runner.invoke(cli, ["serve", *typed, "--print"])
    assert printed.exit_code == 0, printed.output
    done = runner.invoke(cli, ["serve", *typed])
    assert done.exit_code == 0, done.output
    path = tmp_path / "config/systemd/user/anespec.service"
    assert path.read_text() == printed.output
    assert "systemctl --user enable --now anespec.service" in done.output
    found = lines(Unit(path, path.read_text(), (), ()))
    words = read_words(found["ExecStart"])
    assert words[:4] == [sys.executable, "-m", "anespec", "serve"]
    assert words[-2:] == ["--", str(tmp_path / "m.gguf")]
    assert sorted(words[4:-2]) == sorted(
        [
            f"--model=s={tmp_path / 's.gguf'}", "--preload", "--body-bytes=2000000", "--queue=5",
            f"--config={tmp_path / 'serve.toml'}", "--allow-host=a", "--allow-host=b",
            "--drain-seconds=100.0",
        ]
    )  # fmt: skip
    assert int(found["TimeoutStopSec"]) > 100
    again = runner.invoke(cli, ["serve", "--show-config", *words[4:]])
    assert again.exit_code == 0, again.output
    assert "queue = 5  # the command line" in again.output
    gone = runner.invoke(cli, ["serve", "--uninstall"])
    assert gone.exit_code == 0 and not path.exists()


def test_a_model_that_is_not_there_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(cli, ["serve", "none.gguf", "--install", "--print"]).exception
    assert isinstance(refused, UsageError)


@pytest.mark.parametrize("prefix", ["", "@"])
def test_systemd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    address = f"@anespec-{tmp_path.name}-test" if prefix else str(tmp_path / "n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as system:
        system.bind(f"\0{address[1:]}" if prefix else address)
        system.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        tell_system(READY)
        assert system.recv(100) == b"READY=1"
    tell_system(READY)
