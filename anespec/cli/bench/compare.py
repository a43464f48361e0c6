"""Implement `anespec bench compare`: what differs between two reports, beyond the spread of their runs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from anespec.cli.console import json_option, notes, out, print_json
from anespec.system.formatting import counted, printable

if TYPE_CHECKING:
    from anespec.validate.bench.compare import Compared

REPORT = click.Path(path_type=Path)


@click.command(short_help="Compare two reports of bench run --json.")
@click.argument("first", metavar="A.json", type=REPORT)
@click.argument("second", metavar="B.json", type=REPORT)
@json_option
def compare(first: Path, second: Path, as_json: bool) -> None:
    """Compare two reports of `bench run --json`: two machines, two backends, before and after.

    Cases of the same prompt, length and way of drafting are compared. The ratio is B's tokens per second
    divided by A's; its range goes from B's slowest run against A's fastest to the reverse. Rows whose range
    does not hold 1 are marked.

    \b
    Example:
      anespec bench run model.anespec --json > before.json
      anespec bench compare before.json after.json
    """
    from anespec.validate.bench.compare import compare_reports

    found = compare_reports(first, second)
    if as_json:
        print_json(found.facts())
        return
    _show(found)


def _show(found: "Compared") -> None:
    for name, (ours, theirs) in found.conditions.items():
        notes().print(f"note: {name} differs: {printable(str(ours))} and {printable(str(theirs))}")
    if found.left_out:
        notes().print(f"note: {counted(found.left_out, 'case')} of one report alone, left out")
    table = Table(box=None)
    has_suites = len({row.suite for row in found.rows}) > 1
    for name in [*(["suite"] if has_suites else []), "text", "drafts"]:
        table.add_column(name, overflow="fold")
    for name in ("cases", "B / A\n(range)", "tokens\nper pass", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found.rows:
        verdict = "" if not row.differs else "faster" if row.ratio > 1 else "slower"
        table.add_row(
            *([printable(row.suite)] if has_suites else []),
            printable(row.group),
            printable(row.way),
            str(row.cases),
            f"{row.ratio:.2f} ({row.least:.2f}-{row.most:.2f})",
            f"{row.passes:.3f}",
            verdict,
        )
    out().print(table)
    differing = sum(row.differs for row in found.rows)
    out().print(
        f"\n{differing} of {counted(len(found.rows), 'row')} "
        f"{'differs' if differing == 1 else 'differ'} by more than the spread of their runs."
    )
    if any(row.runs == 1 for row in found.rows):
        out().print("With one run of a case there is no spread; measure with --runs 3.")
