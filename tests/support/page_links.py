"""Links of a Markdown page, and whether they lead somewhere in the repository."""

import re
from collections.abc import Iterator
from pathlib import Path

LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
ELSEWHERE = re.compile(r"[a-z]+:")


def links(text: str) -> list[str]:
    """What a page links to, in its order; what stands in code is no link."""
    return [found["target"] for found in LINK.finditer(CODE.sub("", text))]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    plain = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ +(.*?) *$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    """The links of a page to a file, a folder or a heading that is not there."""
    for link in links(page.read_text()):
        if ELSEWHERE.match(link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            yield link
