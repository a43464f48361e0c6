"""A program that loads a model: who sees how far that is, and how models and completions show themselves."""

import io
import os
import pty
import re
import select
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from patience import PATIENCE

import anespec
from anespec.api import watcher_of
from anespec.embedded import model_path
from anespec.system.progress import SILENT

pytestmark = pytest.mark.usefixtures("new_processes_are_this_one")


@pytest.fixture(autouse=True)
def cache_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.slow
def test_a_function_is_called_from_the_conversion_to_the_gates() -> None:
    heard: list[tuple[str, float | None]] = []
    with anespec.load(model_path(), threads=1, progress=lambda what, share: heard.append((what, share))):
        pass
    whats = [what for what, _ in heard]
    assert any(what.startswith("converting ") for what in whats)
    assert any(what.startswith("exactness") for what in whats)
    assert any(what.startswith("loading ") for what in whats)
    shares = [share for what, share in heard if share is not None and what.startswith("converting ")]
    assert shares == sorted(shares) and all(0 <= share <= 1 for share in shares) and shares


def test_nobody_hears_where_nobody_looks(capfd: pytest.CaptureFixture[str], trained: Path) -> None:
    assert watcher_of(False) is SILENT
    assert watcher_of(True) is SILENT
    anespec.load(trained, threads=1).close()
    assert "loading" not in "".join(capfd.readouterr())


def test_a_notebook_gets_a_line_that_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("anespec.api.SECONDS_BETWEEN_LINES", 0)
    monkeypatch.setattr(sys, "stderr", shown := io.StringIO())
    with watcher_of(True).shares("converting") as report:
        report("a long name of a shard", 0.25)
        report("short", 0.5)
    lines = shown.getvalue().split("\r")
    assert lines[2] == f"{'█' * 5}{'░' * 15}  25% converting: a long name of a shard"
    assert lines[3].startswith(f"{'█' * 10}{'░' * 10}  50% converting: short ")
    assert len(lines[3]) == len(lines[2]) and lines[4].strip() == "" and "\n" not in shown.getvalue()


PROGRAM = "import anespec, sys; anespec.load(sys.argv[1], threads=1)"


@pytest.mark.slow
def test_a_terminal_gets_a_bar(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    environment = os.environ | {"TERM": "xterm", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, str(model_path())]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = ""
    try:
        while re.search(r"converting .*\d+%", shown) is None:
            assert select.select([ours], [], [], PATIENCE)[0], shown
            shown += os.read(ours, 1 << 16).decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_a_model_says_what_it_is_and_what_is_proven(trained: Path) -> None:
    with anespec.load(trained, threads=1, backend="openvino") as model:
        proven = "speculation and prompt reuse"
        assert repr(model) == (
            f"<Model embedded on openvino: a context of 256, 1 sequence; proven: {proven}>"
        )
        assert model.speculates and model.reuses_prompts


@pytest.mark.slow
def test_a_completion_says_its_text_tokens_and_speed(trained: Path) -> None:
    with anespec.load(trained, threads=1) as model:
        found = model.generate("Once upon a time", max_tokens=20)
        assert re.fullmatch(
            rf"<Completion {re.escape(repr(found.text))}: 20 tokens at \d+\.\d tokens/s \(length\)>",
            repr(found),
        )
        assert str(found) == found.text
        long = model.generate("Once upon a time", max_tokens=200)
        assert len(repr(long)) < 300 and "…" in repr(long) and "200 tokens" in repr(long)
        several = model.generate("Once", max_tokens=5, choices=2, temperature=1.0)
        assert repr(several).count(": 5 tokens") == 2
