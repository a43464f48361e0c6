"""The page for every eye and hand: keyboard, phone, light and dark, names."""

import re
from typing import Any

import pytest
from browsing import Open, Visit
from playwright.sync_api import expect
from scripted_chat import Piece, Said, Script, said

from anespec.runtime.server.http.errors import ApiError


@pytest.mark.slow
def test_everything_can_be_done_with_the_keyboard(visit: Visit, script: Script) -> None:
    keyboard, focused = visit.page.keyboard, lambda: visit.page.evaluate("document.activeElement.id")
    assert focused() == "question"
    for _ in range(20):
        if focused() == "skip":
            break
        keyboard.press("Shift+Tab")
    assert visit.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    keyboard.press("Enter")
    assert focused() == "question"
    keyboard.type("One line")
    keyboard.press("Shift+Enter")
    keyboard.type("and another?")
    keyboard.press("Enter")
    visit.wait_for_end()
    assert script.asked[0]["messages"][0]["content"] == "One line\nand another?"
    keyboard.press("ArrowUp")
    assert "Edit the question" in (visit.page.evaluate("document.activeElement.ariaLabel") or "")
    keyboard.press("Escape")
    assert focused() == "question"
    keyboard.press("Escape")
    keyboard.press("?")
    expect(visit.page.locator("#keys")).to_be_visible()
    keyboard.press("Escape")
    keyboard.press("k")
    assert visit.page.evaluate("document.activeElement.className") == "message answer"
    keyboard.press("r")
    expect(visit.page.locator(".turns")).to_have_text("2 of 2")
    keyboard.press("d")
    expect(visit.page.locator("#drafts")).to_have_attribute("aria-pressed", "true")
    keyboard.press("s")
    visit.page.get_by_label("Single keys").uncheck()
    keyboard.press("Escape")
    visit.page.locator("body").evaluate("() => document.activeElement.blur()")
    keyboard.press("n")
    expect(visit.page.locator("#welcome")).not_to_be_visible()


@pytest.mark.slow
def test_a_phone_needs_no_scrolling_sideways(open_page: Open, script: Script) -> None:
    wide = "x" * 300
    table = f"| {wide} | b |\n|---|---|\n| 1 | {wide} |"
    text = f"# {wide}\n\n{wide} `{wide}`\n\n```\n{wide}\n```\n\n{table}\n\n- {wide}"
    script.answers.append(Said([Piece(text, "lookup")]))
    visit = open_page(viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True)
    visit.ask(wide)
    visit.wait_for_end()
    visit.page.locator("#drafts").click()

    def overflow() -> Any:
        return visit.page.evaluate(
            """() => [...document.querySelectorAll("body, .thread, .dock, .bar, .message, .sidebar, [open]")]
              .filter((each) => each.scrollWidth > each.clientWidth + 1
                || each.getBoundingClientRect().width > innerWidth)
              .map((each) => each.className || each.tagName)"""
        )

    assert overflow() == []
    visit.page.locator("#toggle-sidebar").click()
    expect(visit.page.locator("#sidebar")).to_be_in_viewport()
    assert overflow() == []
    visit.page.locator("#conversations .open").click()
    expect(visit.page.locator("#sidebar")).not_to_be_visible()
    visit.page.locator("#show-settings").click()
    assert overflow() == []


@pytest.mark.slow
def test_who_wants_no_motion_gets_none(open_page: Open, script: Script) -> None:
    visit = open_page(reduced_motion="reduce")
    script.answers.append(said("on and ", endless=True, seconds=0.02))
    visit.ask("Move")
    expect(visit.answer()).to_contain_text("on and")
    visit.page.locator("#show-settings").click()
    assert visit.page.evaluate("document.getAnimations().length") == 0


CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const over = (colours) => {
    canvas.fillStyle = "#fff"; canvas.fillRect(0, 0, 1, 1);
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((each) => each / 255);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (!own || !element.checkVisibility({ visibilityProperty: true })) continue;
    if (element.closest("option, .unseen")) continue;
    const grounds = [];
    for (let each = element; each; each = each.parentElement) {
      grounds.unshift(getComputedStyle(each).backgroundColor);
    }
    const [text, ground] = [light(over([...grounds, getComputedStyle(element).color])), light(over(grounds))];
    const ratio = Math.max(text, ground) / Math.min(text, ground);
    const name = element.className || element.tagName;
    if (ratio < 4.5) found.push([name, element.textContent.slice(0, 40), ratio]);
  }
  return found;
}"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(open_page: Open, script: Script, scheme: str) -> None:
    visit = open_page(color_scheme=scheme, reduced_motion="reduce")
    text = "Text, `code`, [a link](https://example.org)\n\n> quoted\n\n```py\nx = 1\n```\n\n|a|\n|-|\n|b|"
    sources = ["mix", "lookup", "reference", "recycle", "jacobi", "datastore"]
    script.answers.append(
        Said([*(Piece(f"{source} ", source) for source in sources), Piece(text)], error=None)
    )
    visit.ask("Show all")
    visit.wait_for_end()
    script.answers.append(ApiError(400, "it does not fit", "context_length_exceeded"))
    visit.ask("More")
    visit.wait_for_end()
    visit.page.locator("#drafts").click()
    ground = visit.page.evaluate("getComputedStyle(document.querySelector('.page')).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) > 380) is (scheme == "light")
    assert visit.page.evaluate(CONTRASTS) == []
    visit.page.locator("#show-settings").click()
    assert visit.page.evaluate(CONTRASTS) == []


@pytest.mark.slow
def test_light_and_dark_can_be_chosen(open_page: Open) -> None:
    visit = open_page(color_scheme="light")
    ground = "getComputedStyle(document.querySelector('.page')).backgroundColor"
    light = visit.page.evaluate(ground)
    visit.page.locator("#toggle-theme").click()
    dark = visit.page.evaluate(ground)
    assert dark != light
    visit.page.reload()
    assert visit.page.evaluate(ground) == dark


@pytest.mark.slow
def test_all_that_can_be_used_has_a_name(visit: Visit) -> None:
    visit.ask("Name it")
    visit.wait_for_end()
    nameless = visit.page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, textarea, a, dialog")]
          .filter((each) => !each.ariaLabel && !each.textContent.trim() && !each.labels?.length)
          .filter((each) => !each.hidden).map((each) => each.outerHTML)"""
    )
    assert nameless == []


@pytest.mark.slow
def test_a_toast_covers_no_notice(visit: Visit) -> None:
    visit.page.evaluate(
        """() => {
            const notice = document.getElementById("notice");
            notice.textContent = "A long notice of what is wrong. ".repeat(20);
            notice.hidden = false;
        }"""
    )
    visit.ask("Is it covered?")
    visit.wait_for_end()
    visit.page.locator("#conversations .open").hover()
    visit.page.get_by_role("button", name=re.compile("^Delete")).click()
    toast, notice = visit.page.locator("#toast"), visit.page.locator("#notice")
    expect(toast).to_be_visible()
    above, below = toast.bounding_box(), notice.bounding_box()
    assert above is not None and below is not None
    assert above["y"] + above["height"] <= below["y"]
