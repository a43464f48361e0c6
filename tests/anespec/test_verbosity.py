"""-v says more on standard error, -q less; results and errors stay as they are."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from commands import run

from anespec.cli.console import aside, notes
from anespec.cli.main import cli
from anespec.cli.verbosity import accept_verbosity


@pytest.fixture(autouse=True)
def cache_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


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


def test_verbose_logs_beside_the_result() -> None:
    outcome = run("-v", "list", "--json")
    assert outcome.json["models"] == []
    assert "anespec: anespec " in outcome.err


@pytest.mark.slow
def test_quiet_leaves_the_text_and_the_errors(trained: Path) -> None:
    quiet = run("-q", "generate", trained, "-p", "def f(", "-n", "4", "--threads", "1")
    assert (quiet.code, quiet.err) == (0, "")
    assert quiet.out
    failed = run("-q", "generate", trained.parent / "missing", "-p", "x")
    assert failed.code == 8
    assert failed.is_one_sentence()


@pytest.mark.usefixtures("noisy")
def test_both_go_after_the_verb_too() -> None:
    accept_verbosity(cli.commands["noisy"])
    quiet = CliRunner().invoke(cli, ["noisy", "-q"])
    assert (quiet.stdout, quiet.stderr) == ("the result\n", "asked for\n")
    assert CliRunner().invoke(cli, ["-q", "noisy", "-v"]).exit_code == 2
    assert CliRunner().invoke(cli, ["list", "-q"]).exit_code == 0
