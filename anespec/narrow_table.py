"""A table whose first column is complete in any terminal; other columns are dropped."""

from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.measure import Measurement
from rich.table import Table

from anespec.console import out


def print_table(columns: Mapping[str, Sequence[str]], droppable: Sequence[str]) -> None:
    """Print columns by their titles on standard output; the cells of a row stand at the same place in each.

    If the terminal is too narrow, the `droppable` columns are dropped in their order. Output that is not a
    terminal gets all columns, in lines of any length.
    """
    console, shown = out(), dict(columns)
    if not console.is_terminal:
        console.width = _width(shown)
    for title in droppable:
        if _width(shown) <= console.width:
            break
        shown.pop(title)
    console.print(_table(shown))


def _table(columns: Mapping[str, Sequence[str]]) -> Table:
    table = Table(box=None)
    for place, (title, cells) in enumerate(columns.items()):
        whole = max(map(cell_len, (title, *cells))) if place == 0 else None
        table.add_column(title, no_wrap=place == 0, overflow="fold", min_width=whole)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table


def _width(columns: Mapping[str, Sequence[str]]) -> int:
    """Cells of the widest line."""
    console = out()
    return Measurement.get(console, console.options.update(width=1 << 14), _table(columns)).maximum
