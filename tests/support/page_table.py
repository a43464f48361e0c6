"""Tables of documents that are written from the code."""

from pathlib import Path


def with_table(page: Path, name: str, table: str) -> str:
    """The text of a page with `table` between its marks `<!-- name: begin -->` and `<!-- name: end -->`."""
    begin, end = (f"<!-- {name}: {place} -->" for place in ("begin", "end"))
    before, _, rest = page.read_text().partition(begin)
    return f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"
