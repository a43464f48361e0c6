"""The tables that `anespec bench replay` prints."""

from typing import TYPE_CHECKING

from rich.table import Table

from anespec.console import notes, out
from anespec.manifests.formatting import bytes_text, counted, printable

if TYPE_CHECKING:
    from anespec.runtime.pass_costs import PassCosts
    from anespec.runtime.statistics import Statistics
    from anespec.validate.bench.replay import Replayed


def show_replay(result: "Replayed", drafter: str, block: int, costs: "PassCosts | None") -> None:
    """Print the tables of a replay in blocks of `block` rows, or as `costs` pay."""
    from anespec.validate.bench.replay_page import speedup

    table = Table(box=None)
    table.add_column("category", overflow="fold")
    titles = ("tokens", "passes", "tokens per pass", *(("speedup",) if costs else ()), "right by position")
    for title in titles:
        table.add_column(title, justify="right")
    for name, counts in {**result.categories, "overall": result.overall}.items():
        table.add_row(
            printable(name),
            str(counts.decoded_tokens),
            str(counts.decode_passes),
            f"{counts.tokens_per_pass:.3f}",
            *((f"{speedup(counts, costs):.3f}",) if costs else ()),
            _acceptance(counts),
            style="bold" if counts is result.overall else None,
        )
    rows = f"blocks of {block}" if costs is None else "drafts as they pay"
    out().print(f"{counted(result.requests, 'answer')} replayed with {drafter}, {rows}.\n")
    out().print(table)
    if drafter == "none":
        return
    if result.wants_rows:
        notes().print(
            f"note: {drafter} learns from what the model itself holds likely, which no trace tells; "
            "`anespec bench run` shows what that is worth",
            style="yellow",
        )
    times = Table("the drafter's time, us", box=None)
    for title in ("median", "99 of 100"):
        times.add_column(title, justify="right")
    taken = result.times
    for name, samples in (
        ("a proposal", taken.proposal),
        ("a token learnt", taken.observing),
        ("a token of a prompt", taken.opening),
        ("an answer's end", taken.closing),
    ):
        quantiles = samples.quantiles
        times.add_row(name, f"{quantiles.median:.1f}", f"{quantiles.p99:.1f}")
    out().print()
    out().print(times)
    out().print(f"\nIt held {bytes_text(result.memory_bytes)} of memory at most.")


def _acceptance(statistics: "Statistics") -> str:
    """The share of drafts right at each of the first positions, of those that ran there."""
    from anespec.validate.bench.sentences import position_text

    pairs = zip(statistics.accepted_by_position, statistics.proposed_by_position, strict=True)
    return position_text(accepted / proposed for accepted, proposed in pairs)
