"""-v says more on standard error, -q less; results and errors stay as they are."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from commands import run

from anespec.console import aside, notes
from anespec.main import cli


@pytest.fixture
def noisy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verb that says something everywhere."""

    @click.command()
    def noisy() -> None:
        notes().print("a note")
        aside().print("asked for")
        click.echo("the result")

    monkeypatch.setitem(cli.commands, "noisy", noisy)


@pytest.mark.usefixtures("noisy")
def test_quiet_leaves_out_notes_alone() -> None:
    loud, quiet = CliRunner().invoke(cli, ["noisy"]), CliRunner().invoke(cli, ["-q", "noisy"])
    assert loud.stdout == quiet.stdout == "the result\n"
    assert loud.stderr == "a note\nasked for\n"
    assert quiet.stderr == "asked for\n"


def test_quiet_and_verbose_exclude_each_other() -> None:
    assert CliRunner().invoke(cli, ["-q", "-v", "demo"]).exit_code == 2


def test_verbose_logs_and_quiet_generates_the_same(trained: Path) -> None:
    options = ("generate", trained, "-p", "def f(", "-n", "4", "--threads", "1")
    verbose, quiet = run("-v", *options), run("-q", *options)
    assert verbose.code == quiet.code == 0
    assert verbose.out == quiet.out
    assert "anespec: anespec " in verbose.err
    assert quiet.err == ""
    failed = run("-q", "generate", trained.parent / "missing", "-p", "x")
    assert failed.code == 5
    assert failed.is_one_sentence()
