"""What the page tells of speculation: where tokens came from, and figures."""

import re

import pytest
from browsing import Visit
from playwright.sync_api import Locator, expect
from scripted_chat import Piece, Said, Script


def figure(visit: Visit, name: str) -> Locator:
    """One of the figures below the message field."""
    return visit.page.locator(".figure", has=visit.page.get_by_text(name, exact=True)).locator("dd")


@pytest.mark.slow
def test_figures_live_while_an_answer_is_written(visit: Visit, script: Script) -> None:
    script.answers.append(
        Said([Piece("a "), Piece("b ", "lookup"), Piece("c ", "lookup")], 0.02, endless=True)
    )
    visit.ask("How quick?")
    for name, shown in {
        "tokens/pass": r"2\.\d\d|3\.\d\d",
        "computed/pass": "4.00",
        "answering": "1 of 4",
    }.items():
        expect(figure(visit, name)).to_have_text(re.compile(f"^({shown})$"))
    expect(figure(visit, "drafts right")).to_have_text(re.compile(r"^6\d %|7\d %$"))
    expect(figure(visit, "tokens/s")).to_have_text(re.compile(r"^\d"))
    visit.page.keyboard.press("Escape")
    visit.wait_for_end()
    expect(figure(visit, "tokens/pass")).to_have_text(re.compile(r"^(2\.\d\d|3\.\d\d)$"))


@pytest.mark.slow
def test_drafted_tokens_are_coloured_by_source(visit: Visit, script: Script) -> None:
    pieces = [
        Piece("**Once"),
        Piece(" upon", "lookup"),
        Piece(" a** ", "lookup"),
        Piece("time"),
        Piece("!", "memory"),
    ]
    script.answers.append(Said(pieces))
    visit.ask("Tell")
    visit.wait_for_end()
    drafted = visit.page.locator(".answer .drafted")
    assert drafted.all_inner_texts() == ["upon a", "!"]
    plain = drafted.first.evaluate("each => getComputedStyle(each).backgroundColor")
    visit.page.locator("#drafts").click()
    colours = drafted.evaluate_all("all => all.map((each) => getComputedStyle(each).backgroundColor)")
    assert len({plain, *colours}) == 3
    assert visit.page.locator("#legend").inner_text().split() == ["Drafted", "by", "lookup", "memory"]
    assert visit.page.locator("#passes span").count() == 2
    expect(figure(visit, "tokens/s")).to_have_text("41.3")
    expect(figure(visit, "tokens/pass")).to_have_text("2.50")
    expect(figure(visit, "computed/pass")).to_have_text("4.00")
    expect(figure(visit, "drafts right")).to_have_text("50 %")
    expect(figure(visit, "answering")).to_have_text("0 of 4")


@pytest.mark.slow
def test_each_figure_says_what_it_means(visit: Visit) -> None:
    expect(figure(visit, "answering")).to_have_text("0 of 4")
    shown = visit.page.locator("#figures > div")
    assert shown.count() >= 5
    for number in range(shown.count()):
        assert (shown.nth(number).get_attribute("title") or "").endswith(".")
