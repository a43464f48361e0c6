"""What a person gets who mistypes, or asks for help: a usage error, and texts that fit a terminal."""

import pytest
from click.testing import CliRunner
from rich.progress import Progress

from anespec.console import TimesColumn
from anespec.main import cli
from anespec.runtime.backends import AUTO, BACKENDS
from anespec.runtime.options import BACKEND_CHOICES


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("generate", "m.anespec", "-p", "x", "--backend", "cuda"), "--backend"),
        (("validate", "m.anespec", "--backend", ""), "--backend"),
        (("demo", "--backend", "cuda"), "--backend"),
        (("convert", "m.gguf", "--block", "0"), "--block"),
        (("inspect", "m.gguf", "--block", "65"), "--block"),
        (("validate", "--explain", "no-such-rule"), "--explain"),
    ],
)
def test_a_value_that_never_means_anything_is_wrong_usage(arguments: tuple[str, ...], option: str) -> None:
    outcome = CliRunner().invoke(cli, arguments)
    assert outcome.exit_code == 2, outcome.output
    assert f"Invalid value for '{option}'" in outcome.output


def test_the_choice_of_backends_is_what_the_runtime_has() -> None:
    assert (AUTO, *BACKENDS) == BACKEND_CHOICES


@pytest.mark.parametrize("verb", [None, *cli.commands])
def test_help_fits_a_terminal_of_80_columns(verb: str | None) -> None:
    arguments = ["--help"] if verb is None else [verb, "--help"]
    outcome = CliRunner().invoke(cli, arguments, terminal_width=80)
    assert outcome.exit_code == 0
    assert [line for line in outcome.output.splitlines() if len(line) > 80] == []
    assert "Example:" in outcome.output
    assert "..." not in outcome.output.replace("[ARGS]...", ""), "a verb's summary is cut"


def test_time_taken_is_not_called_time_left() -> None:
    now = [0.0]
    with Progress(disable=True, get_time=lambda: now[0]) as progress:
        unknown = progress.add_task("work", total=None)
        known = progress.add_task("work", total=1.0)
        now[0] = 2.0
        progress.update(known, completed=0.25)
        now[0] = 4.0
        progress.update(known, completed=0.5)
        shown = {task.id: TimesColumn().render(task).plain for task in progress.tasks}
    assert shown[unknown] == "4.0 s"
    assert shown[known].startswith("4.0 s, ")
    assert shown[known].endswith(" s left")
