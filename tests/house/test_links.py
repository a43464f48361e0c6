"""Every page can be found from the index of docs, and every link of every page leads somewhere."""

from pathlib import Path

import pytest
from page_links import broken_links, links

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks/README.md",
    ROOT / "embedded/README.md",
    *sorted(DOCS.glob("*.md")),
]
AUDIENCES = ["**Use it**", "**Serve it**", "**On a Mac**", "**How it works**", "**Contribute**"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_every_page_is_in_the_index_under_an_audience() -> None:
    index = (DOCS / "README.md").read_text()
    assert [line for line in index.splitlines() if line.startswith("**")] == AUDIENCES
    linked = {link.partition("#")[0] for link in links(index)}
    assert [page.name for page in DOCS.glob("*.md") if page.name not in linked | {"README.md"}] == []


def test_the_readme_leads_to_the_index() -> None:
    assert "docs/README.md" in links((ROOT / "README.md").read_text())


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("[a](there.md) [b](there.md#a-heading-of-two-words) [c](https://example.org/x)", []),
        ("[a](gone.md)", ["gone.md"]),
        ("[a](there.md#another)", ["there.md#another"]),
        ("[a](#here)\n\n# There", ["#here"]),
        ("`[a](gone.md)`\n\n```\n[a](gone.md)\n```\n", []),
    ],
)
def test_a_link_that_leads_nowhere_is_found(text: str, broken: list[str], tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# There\n\n## A heading, of `two` words\n")
    (tmp_path / "page.md").write_text(text)
    assert list(broken_links(tmp_path / "page.md")) == broken
