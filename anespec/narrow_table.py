"""A table whose first column stays whole in any terminal: others give way."""

from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.measure import Measurement
from rich.table import Table

from anespec.console import out


def print_table(columns: Mapping[str, Sequence[str]], droppable: Sequence[str]) -> None:
    """Print columns by their titles on standard output; the cells of a row stand at the same place in each.

    A terminal that is too narrow for all does without those that are `droppable`, in their order. What is no
    terminal gets all, in lines as long as they are.
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
