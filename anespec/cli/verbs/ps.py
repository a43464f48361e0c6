"""Implement `anespec ps` and `anespec stop`: show and stop running daemons."""

from datetime import UTC, datetime
from typing import Any

import click
from rich.table import Table

from anespec.cli.console import json_option, out, print_json, timed_progress
from anespec.serving.records import DaemonRecord, running_daemons
from anespec.system.errors import UsageError
from anespec.system.formatting import counted, listed, printable, quoted


@click.command("ps", short_help="Show the running daemons.")
@json_option
def show_daemons(as_json: bool) -> None:
    """Show your running daemons, which `anespec serve` started.

    \b
    Example:
      anespec ps
    """
    found = running_daemons()
    if as_json:
        print_json({"daemons": [_facts(record) for record in found]})
        return
    if not found:
        out().print("No daemon runs; `anespec serve model.gguf` starts one.")
        return
    table = Table(box=None)
    for title in ("pid", "address", "models", "since"):
        table.add_column(title, overflow="fold")
    for record in found:
        models = ", ".join(_shown_model(record, model) for model in record.models)
        table.add_row(str(record.pid), printable(record.address), models, f"{_began(record):%Y-%m-%d %H:%M}")
    out().print(table)


@click.command("stop", short_help="End daemons.")
@click.argument("names", nargs=-1, metavar="[NAME|PID]…")
@click.option("--all", "everything", is_flag=True, help="End every daemon.")
@click.option("--now", is_flag=True, help="Do not wait for running answers.")
@json_option
def stop_daemons(names: tuple[str, ...], everything: bool, now: bool, as_json: bool) -> None:
    """End the daemons that serve a model called NAME, or have the process id PID; without either, the only
    one.

    Running answers are completed first, for at most the daemon's --drain-seconds.

    \b
    Example:
      anespec stop
      anespec stop small --now
    """
    if names and everything:
        raise click.UsageError("name the daemons to end, or pass --all")
    from anespec.serving.records import stop

    found = running_daemons()
    chosen = found if everything else _called(found, names) if names else _only(found)
    with timed_progress("stopping", shown=not as_json) as report:
        forced = stop(chosen, now, report)
    if as_json:
        print_json({"stopped": [record.pid for record in chosen], "forced": [each.pid for each in forced]})
        return
    hard = f"; {listed([str(each.pid) for each in forced])} had to be killed" if forced else ""
    out().print(f"{counted(len(chosen), 'daemon')} ended{hard}.")


def _facts(record: DaemonRecord) -> dict[str, Any]:
    return {
        "pid": record.pid,
        "started": _began(record).isoformat(timespec="seconds"),
        "address": record.address,
        "models": list(record.models),
        "checking": record.checking,
        "anespec": record.version,
    }


def _shown_model(record: DaemonRecord, model: str) -> str:
    checking = record.checking.get(model)
    return printable(model) + (f" (checking: {printable(checking)})" if checking is not None else "")


def _began(record: DaemonRecord) -> datetime:
    return datetime.fromtimestamp(record.started, UTC).astimezone()


def _only(found: list[DaemonRecord]) -> list[DaemonRecord]:
    if len(found) > 1:
        pids = listed([str(record.pid) for record in found], "or")
        raise UsageError(f"{len(found)} daemons run; name one ({pids}), or pass --all")
    if not found:
        raise UsageError("no daemon of yours runs; `anespec serve` starts one")
    return found


def _called(found: list[DaemonRecord], names: tuple[str, ...]) -> list[DaemonRecord]:
    chosen: dict[int, DaemonRecord] = {}
    for name in names:
        meant = [record for record in found if record.is_called(name)]
        if not meant:
            raise UsageError(
                f"no daemon of yours serves {quoted(name)}, or has that process id; see `anespec ps`"
            )
        chosen |= {record.pid: record for record in meant}
    return list(chosen.values())
