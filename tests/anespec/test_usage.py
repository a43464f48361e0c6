"""What a person gets who mistypes, or asks for help: a usage error, and texts that fit a terminal."""

import pytest
from click.testing import CliRunner
from rich.progress import Progress

from anespec.cli.console import TimesColumn
from anespec.cli.main import VERBS, cli
from anespec.cli.memory.verb import memory
from anespec.system.errors import StorageError


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("generate", "m.anespec", "-p", "x", "--backend", "cuda"), "--backend"),
        (("validate", "m.anespec", "--backend", ""), "--backend"),
        (("demo", "--backend", "cuda"), "--backend"),
        (("convert", "m.gguf", "--block", "0"), "--block"),
        (("inspect", "m.gguf", "--block", "65"), "--block"),
        (("validate", "--explain", "no-such-rule"), "--explain"),
        (("convert", "m.gguf", "--shard-bytes", "1 XB"), "--shard-bytes"),
        (("convert", "m.gguf", "--shard-bytes", "0"), "--shard-bytes"),
        (("generate", "m.anespec", "-p", "x", "--worker-budget", "1e9"), "--worker-budget"),
    ],
)
def test_a_value_that_never_means_anything_is_wrong_usage(arguments: tuple[str, ...], option: str) -> None:
    outcome = CliRunner().invoke(cli, arguments)
    assert outcome.exit_code == 2, outcome.output
    assert f"Invalid value for '{option}'" in outcome.output


def test_a_size_is_written_with_its_unit_and_one_that_is_none_is_told_how() -> None:
    outcome = CliRunner().invoke(cli, ["convert", "m.gguf", "--shard-bytes", "many"])
    assert "'many' is not a size such as 500MB or 3GB." in outcome.output
    for size, limit in (("1KB", "at least 1.0 MB"), ("100GB", "at most 1.00 GB")):
        outcome = CliRunner().invoke(cli, ["generate", "m.gguf", "--draft-memory-size", size])
        assert f"'{size}' is not {limit}." in outcome.output
    outcome = CliRunner().invoke(cli, ["convert", "no-such.gguf", "--shard-bytes", "1.5GB"])
    assert isinstance(outcome.exception, StorageError)


@pytest.mark.parametrize("option", ["--memory", "--body-bytes"])
def test_what_a_daemon_may_take_is_a_size_like_any_other(option: str) -> None:
    outcome = CliRunner().invoke(cli, ["serve", "m.gguf", option, "lots"])
    assert outcome.exit_code == 2
    assert "'lots' is not a size such as 500MB or 3GB." in outcome.output


WITHIN = [
    "worker build",
    "worker path",
    "bench replay",
    "bench run",
    "bench suites",
    "bench compare",
    "bench prompts",
    *(f"memory {name}" for name in memory.commands),
]


@pytest.mark.parametrize("verb", ["", *VERBS, *WITHIN])
def test_help_fits_a_terminal_of_80_columns(verb: str) -> None:
    outcome = CliRunner().invoke(cli, [*verb.split(), "--help"], terminal_width=80)
    assert outcome.exit_code == 0
    assert [line for line in outcome.output.splitlines() if len(line) > 80] == []
    assert "Example:" in outcome.output
    several = ("[ARGS]...", "[PROMPT]...")
    assert not [line for line in outcome.output.splitlines() if "..." in line and not line.endswith(several)]


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
    assert shown[unknown].split() == ["0:04"]
    assert shown[known].split()[0] == "0:04"
    assert shown[known].endswith(" left")
    assert len(shown[known]) == len(shown[unknown]), "the bar beside it stands still"
