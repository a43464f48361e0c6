"""The page in headless Chromium, over a daemon whose chat says what the test wants."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from browsing import Visit, chromium, in_context, visiting
from playwright.sync_api import Browser, expect
from scripted_chat import Piece, Said, Script, said, scripted
from serving import Running

from anespec.runtime.server.errors import ApiError
from anespec.runtime.server.keys import KeyRing

Open = Callable[..., Visit]

HOSTILE = """<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>
<svg onload="window.hacked=1"><iframe src="javascript:parent.hacked=1"></iframe>

[click](javascript:window.hacked=1) [data](data:text/html,<script>parent.hacked=1</script>)
[tabs](\tjavascript:window.hacked=1) <javascript:window.hacked=1> ![seen](https://elsewhere.example/pixel.png)
[good](https://elsewhere.example/?a=1&b="><script>window.hacked=1</script>)

```html"><img src=x onerror=window.hacked=1>
</code></pre><script>window.hacked=1</script>
```

| <b onmouseover="window.hacked=1">a</b> | b |
|---|---|
| &lt;script&gt;window.hacked=1&lt;/script&gt; | `<script>window.hacked=1</script>` |
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def _open_daemon() -> Iterator[tuple[Running, Script]]:
    script = Script()
    with scripted(script) as found:
        yield found, script


@pytest.fixture
def script(_open_daemon: tuple[Running, Script]) -> Script:
    script = _open_daemon[1]
    script.answers.clear()
    script.asked.clear()
    return script


@pytest.fixture
def daemon(_open_daemon: tuple[Running, Script]) -> Running:
    return _open_daemon[0]


@pytest.fixture
def visit(browser: Browser, daemon: Running, script: Script) -> Iterator[Visit]:
    with visiting(browser, daemon) as found:
        yield found


@pytest.fixture
def open_page(browser: Browser, daemon: Running, script: Script) -> Iterator[Open]:
    """Opens the page as the browser's options say."""
    with ExitStack() as held:
        yield lambda **options: held.enter_context(visiting(browser, daemon, **options))


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_answer_is_shown_as_it_comes(visit: Visit, script: Script) -> None:
    script.answers.append(said("The **first** words", endless=True, seconds=0.02))
    visit.ask("What comes?")
    expect(visit.answer().locator("strong").first).to_have_text("first")
    expect(visit.page.locator("#stop")).to_be_visible()
    visit.page.locator("#stop").click()
    visit.wait_for_end()
    assert script.asked[0]["messages"] == [{"role": "user", "content": "What comes?"}]
    assert script.asked[0]["model"] == "fable-1"
    assert visit.page.title().startswith("What comes?")


def test_escape_stops_and_what_came_is_kept(visit: Visit, script: Script) -> None:
    script.answers.append(said("on and", endless=True, seconds=0.02))
    visit.ask("Go on")
    expect(visit.answer()).to_contain_text("on and on")
    visit.page.keyboard.press("Escape")
    expect(visit.page.locator(".answer .ending")).to_have_text("Stopped.")
    until(lambda: script.listeners == 0)
    visit.ask("And then?")
    visit.wait_for_end()
    roles = [message["role"] for message in script.asked[1]["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert script.asked[1]["messages"][1]["content"].startswith("on and")


def test_answering_again_loses_nothing(visit: Visit, script: Script) -> None:
    script.answers.extend([said("One"), said("Two")])
    visit.ask("Which?")
    visit.wait_for_end()
    visit.page.get_by_role("button", name="Answer again").click()
    expect(visit.answer()).to_have_text("Two")
    assert script.asked[0]["messages"] == script.asked[1]["messages"]
    visit.page.get_by_role("button", name="The one before").click()
    expect(visit.answer()).to_have_text("One")
    expect(visit.page.locator(".answer .turns")).to_have_text("1 of 2")


def test_a_question_is_edited_and_goes_on_from_there(visit: Visit, script: Script) -> None:
    for number in range(2):
        visit.ask(f"Question {number}")
        visit.wait_for_end()
    visit.page.locator(".question").nth(0).get_by_role("button", name="Edit").click()
    visit.page.keyboard.type(", but otherwise")
    visit.page.keyboard.press("Enter")
    visit.wait_for_end()
    assert visit.questions == ["Question 0, but otherwise"]
    assert [message["content"] for message in script.asked[-1]["messages"]] == ["Question 0, but otherwise"]
    visit.page.locator(".question").get_by_role("button", name="The one before").click()
    assert visit.questions == ["Question 0", "Question 1"]


def test_history_survives_a_reload(visit: Visit, script: Script) -> None:
    script.answers.append(Said([Piece("Because", None, True), Piece("It "), Piece("does.", "lookup")]))
    visit.ask("Does it stay?")
    visit.wait_for_end()
    visit.page.locator("#conversations .open").hover()
    visit.page.get_by_role("button", name=re.compile("^Rename")).click()
    visit.page.keyboard.type("What stays")
    visit.page.keyboard.press("Enter")
    expect(visit.page.locator("#title")).to_have_text("What stays")
    visit.page.reload()
    expect(visit.answer()).to_have_text("It does.")
    assert (visit.titles, visit.questions) == (["What stays"], ["Does it stay?"])
    expect(visit.page.locator(".answer .drafted")).to_have_text("does.")


def test_conversations_are_deleted_brought_back_and_told_apart(visit: Visit) -> None:
    visit.ask("First")
    visit.wait_for_end()
    visit.page.locator("#new").click()
    visit.ask("Second")
    visit.wait_for_end()
    assert visit.titles == ["Second", "First"]
    visit.page.locator("#conversations .open").nth(0).hover()
    visit.page.get_by_role("button", name="Delete: Second").click()
    expect(visit.page.locator("#conversations .open")).to_have_count(1)
    expect(visit.page.locator("#welcome")).to_be_visible()
    visit.page.get_by_role("button", name="Undo").click()
    assert visit.titles == ["Second", "First"]
    visit.page.locator("#conversations .open").nth(1).click()
    assert visit.questions == ["First"]


def test_what_is_exported_is_imported(visit: Visit, open_page: Open, tmp_path: Path) -> None:
    visit.ask("Out and in?")
    visit.wait_for_end()
    with visit.page.expect_download() as found:
        visit.page.locator("#export-all").click()
    file = tmp_path / "out.json"
    found.value.save_as(file)
    assert found.value.suggested_filename == "Out and in.json"
    other = open_page()
    for expected in ("1 conversation imported.", "All of them are here already."):
        other.page.locator("#import-file").set_input_files(file)
        expect(other.page.locator("#toast")).to_have_text(expected)
    other.page.locator("#conversations .open").click()
    assert (other.titles, other.questions) == (["Out and in?"], ["Out and in?"])
    expect(other.answer()).to_have_text("Yes.")


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "anespec-conversations", "version": 2, "conversations": []}'])
def test_other_files_are_refused(visit: Visit, tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    visit.page.locator("#import-file").set_input_files(tmp_path / "other.json")
    expect(visit.page.locator("#toast")).to_contain_text("This file")
    assert visit.titles == []


def test_what_a_model_or_a_file_says_is_text(visit: Visit, script: Script, tmp_path: Path) -> None:
    script.answers.append(Said([Piece(HOSTILE, "lookup", True), *map(Piece, HOSTILE), Piece(HOSTILE, HOSTILE)]))
    visit.ask(HOSTILE)
    visit.wait_for_end()
    message = {"id": "a", "role": "user", "content": HOSTILE, "marks": [[0, 3, HOSTILE], "x"], "error": HOSTILE}
    given = {"id": HOSTILE, "title": HOSTILE, "system": 7, "messages": [message], "leaf": "nowhere"}
    (tmp_path / "bad.json").write_text(
        json.dumps({"format": "anespec-conversations", "version": 1, "conversations": [given]})
    )
    visit.page.locator("#import-file").set_input_files(tmp_path / "bad.json")
    expect(visit.page.locator("#conversations .open")).to_have_count(2)
    visit.page.locator("details").evaluate("each => each.open = true")
    visit.page.locator("#drafts").click()
    assert visit.page.evaluate("window.hacked === undefined")
    assert visit.page.locator("img, iframe, #messages script, #messages [onerror], #messages [style]").count() == 0
    links = visit.page.locator("#messages a")
    assert links.count() >= 2
    for link in links.all():
        assert (link.get_attribute("href") or "").startswith("https://elsewhere.example/")
        assert "noopener" in (link.get_attribute("rel") or "")
    assert "<script>window.hacked=1</script>" in visit.answer().inner_text()
    visit.page.locator("#conversations .open", has_text="img").last.click()
    visit.page.reload()
    assert visit.page.evaluate("window.hacked === undefined")


def test_reasoning_is_folded_away(visit: Visit, script: Script) -> None:
    script.answers.append(Said([Piece("Let me *see*.", reasoning=True), Piece("Seen.")]))
    visit.ask("Think")
    visit.wait_for_end()
    expect(visit.page.locator(".reasoning summary")).to_contain_text("Thought")
    expect(visit.page.locator(".thoughts")).not_to_be_visible()
    visit.page.locator(".reasoning summary").click()
    expect(visit.page.locator(".thoughts em")).to_have_text("see")
    assert visit.answer().inner_text() == "Seen."


def test_drafted_tokens_are_coloured_by_source(visit: Visit, script: Script) -> None:
    pieces = [Piece("**Once"), Piece(" upon", "lookup"), Piece(" a** ", "lookup"), Piece("time"), Piece("!", "memory")]
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
    figures = visit.page.locator("#figures").inner_text().split("\n")
    assert figures[:4] == ["tokens/s", "41.3", "tokens/pass", "2.50"]
    assert "1 of 4" in figures


def test_settings_go_with_the_request_and_stay(visit: Visit, script: Script) -> None:
    visit.page.locator("#show-settings").click()
    visit.page.get_by_label("System prompt").fill("Be brief.")
    visit.page.get_by_label("Temperature").fill("0.25")
    visit.page.get_by_label("Seed").fill("7")
    visit.page.get_by_label("Top-p").fill("7")
    visit.page.get_by_label("Stop strings").fill("END\n###")
    visit.page.get_by_label("Draft tokens").uncheck()
    expect(visit.page.get_by_label("Top-p")).to_have_attribute("aria-invalid", "true")
    visit.page.keyboard.press("Escape")
    visit.page.locator("#model").select_option("fable-2")
    visit.page.reload()
    expect(visit.page.locator("#model")).to_have_value("fable-2")
    visit.ask("Hello")
    visit.wait_for_end()
    asked = script.asked[0]
    assert asked["model"] == "fable-2"
    assert {name: asked.get(name) for name in ("temperature", "seed", "stop", "speculate", "top_p")} == {
        "temperature": 0.25,
        "seed": 7,
        "stop": ["END", "###"],
        "speculate": False,
        "top_p": None,
    }


def test_a_system_prompt_belongs_to_its_conversation(visit: Visit, script: Script) -> None:
    visit.page.locator("#show-settings").click()
    visit.page.get_by_label("System prompt").fill("Be brief.")
    visit.page.keyboard.press("Escape")
    visit.ask("Hello")
    visit.wait_for_end()
    visit.page.locator("#new").click()
    visit.ask("Hello")
    visit.wait_for_end()
    assert [asked["messages"][0]["role"] for asked in script.asked] == ["system", "user"]


def test_everything_can_be_done_with_the_keyboard(visit: Visit, script: Script) -> None:
    keyboard, focused = visit.page.keyboard, lambda: visit.page.evaluate("document.activeElement.id")
    assert focused() == "question"
    visit.page.locator("body").evaluate("() => document.activeElement.blur()")
    keyboard.press("Tab")
    assert "Skip" in visit.page.evaluate("document.activeElement.textContent")
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


def test_a_phone_needs_no_scrolling_sideways(open_page: Open, script: Script) -> None:
    wide = "x" * 300
    text = f"# {wide}\n\n{wide} `{wide}`\n\n```\n{wide}\n```\n\n| {wide} | b |\n|---|---|\n| 1 | {wide} |\n\n- {wide}"
    script.answers.append(Said([Piece(text, "lookup")]))
    visit = open_page(viewport={"width": 360, "height": 640}, has_touch=True, is_mobile=True)
    visit.ask(wide)
    visit.wait_for_end()
    visit.page.locator("#drafts").click()

    def overflow() -> Any:
        return visit.page.evaluate(
            """() => [...document.querySelectorAll("body, .thread, .dock, .bar, .message, .sidebar, dialog[open]")]
              .filter((each) => each.scrollWidth > each.clientWidth + 1 || each.getBoundingClientRect().width > 360)
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
    if (!own || !element.checkVisibility({ visibilityProperty: true }) || element.closest("option, .unseen")) continue;
    const grounds = [];
    for (let each = element; each; each = each.parentElement) grounds.unshift(getComputedStyle(each).backgroundColor);
    const [text, ground] = [light(over([...grounds, getComputedStyle(element).color])), light(over(grounds))];
    const ratio = Math.max(text, ground) / Math.min(text, ground);
    if (ratio < 4.5) found.push([element.className || element.tagName, element.textContent.slice(0, 40), ratio]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(open_page: Open, script: Script, scheme: str) -> None:
    visit = open_page(color_scheme=scheme, reduced_motion="reduce")
    text = "Text, `code`, [a link](https://example.org)\n\n> quoted\n\n```py\nx = 1\n```\n\n|a|\n|-|\n|b|"
    sources = ["lookup", "memory", "reference", "grammar", "other", "another"]
    script.answers.append(Said([*(Piece(f"{source} ", source) for source in sources), Piece(text)], error=None))
    visit.ask("Show all")
    visit.wait_for_end()
    script.answers.append(ApiError(400, "it does not fit", "context_length_exceeded"))
    visit.ask("More")
    visit.wait_for_end()
    visit.page.locator("#drafts").click()
    ground = visit.page.evaluate("getComputedStyle(document.querySelector('.page')).backgroundColor")
    assert (sum(map(int, re.findall(r"\\d+", ground)[:3])) > 380) is (scheme == "light")
    assert visit.page.evaluate(CONTRASTS) == []
    visit.page.locator("#show-settings").click()
    assert visit.page.evaluate(CONTRASTS) == []


def test_light_and_dark_can_be_chosen(open_page: Open) -> None:
    visit = open_page(color_scheme="light")
    ground = "getComputedStyle(document.querySelector('.page')).backgroundColor"
    light = visit.page.evaluate(ground)
    visit.page.locator("#toggle-theme").click()
    dark = visit.page.evaluate(ground)
    assert dark != light
    visit.page.reload()
    assert visit.page.evaluate(ground) == dark


def test_a_full_queue_is_waited_for(visit: Visit, script: Script) -> None:
    script.answers.append(ApiError(429, "64 requests wait already", headers={"retry-after": "2"}))
    visit.ask("Is there room?")
    wait = visit.page.locator(".wait")
    expect(wait).to_contain_text("64 requests wait already. Trying again in 2 s.")
    expect(wait).to_contain_text("in 1 s.")
    visit.wait_for_end()
    expect(visit.answer()).to_have_text("Yes.")
    assert len(script.asked) == 2


def test_a_model_that_loads_is_waited_for_or_not(visit: Visit, script: Script) -> None:
    loading = ApiError(503, "the model is being loaded; try again soon", headers={"retry-after": "60"})
    script.answers.extend([loading, loading])
    visit.ask("Are you there?")
    expect(visit.page.locator(".wait")).to_contain_text("The model is being loaded")
    visit.page.get_by_role("button", name="Now").click()
    until(lambda: len(script.asked) == 2)
    visit.page.keyboard.press("Escape")
    expect(visit.page.locator(".answer .ending")).to_have_text("Stopped.")


def test_what_goes_wrong_is_said_and_can_be_tried_again(visit: Visit, script: Script) -> None:
    script.answers.append(ApiError(400, "the conversation has 9 tokens", "context_length_exceeded"))
    script.answers.append(said("Half an", error=ApiError(503, "the server is ending; try again when it is back")))
    visit.ask("Long")
    ending = visit.page.locator(".answer .ending.wrong")
    expect(ending).to_have_text("The conversation has 9 tokens.")
    visit.page.get_by_role("button", name="Answer again").click()
    expect(ending).to_have_text("The server is ending; try again when it is back.")
    expect(visit.answer()).to_have_text("Half an")


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Running]:
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text("ann:0123456789abcdef\n")
    with scripted(Script(), KeyRing.of_file(keys)) as found:
        yield found


def test_a_key_is_asked_for_and_kept_for_this_tab(browser: Browser, locked: Running) -> None:
    with visiting(browser, locked) as visit:
        dialog = visit.page.locator("#ask-key")
        expect(dialog).to_contain_text("this server needs an API key")
        visit.page.get_by_label("Key", exact=True).fill("wrong-wrong-wrong")
        visit.page.keyboard.press("Enter")
        expect(visit.page.get_by_label("Key", exact=True)).to_have_value("")
        visit.page.get_by_label("Key", exact=True).fill("0123456789abcdef")
        visit.page.keyboard.press("Enter")
        expect(visit.page.locator("#model")).to_have_value("fable-1")
        visit.ask("May I?")
        visit.wait_for_end()
        expect(visit.answer()).to_have_text("Yes.")
        kept = visit.page.evaluate("JSON.stringify([{...localStorage}, document.cookie])")
        assert "0123456789abcdef" not in kept
        visit.page.reload()
        expect(visit.page.locator("#model")).to_have_value("fable-1")
        with in_context(visit.page.context, locked) as other:
            expect(other.page.locator("#ask-key")).to_be_visible()
            other.page.keyboard.press("Escape")
            other.ask("May I, too?")
            expect(other.page.locator("#ask-key")).to_be_visible()
            other.page.get_by_label("Key", exact=True).fill("0123456789abcdef")
            other.page.keyboard.press("Enter")
            expect(other.answer()).to_have_text("Yes.")


def test_scrolling_follows_only_from_the_end(visit: Visit, script: Script) -> None:
    script.answers.append(said("line\n\n", endless=True, seconds=0.005))
    visit.ask("Much")
    thread = visit.page.locator("#thread")
    visit.page.wait_for_function("() => document.querySelector('#thread').scrollTop > 300")
    thread.evaluate("each => each.scrollTop = 100")
    expect(visit.page.locator("#to-end")).to_be_visible()
    height = thread.evaluate("each => each.scrollHeight")
    visit.page.wait_for_function(f"() => document.querySelector('#thread').scrollHeight > {height} + 200")
    assert thread.evaluate("each => each.scrollTop") == 100
    visit.page.locator("#to-end").click()
    visit.page.wait_for_function(f"() => document.querySelector('#thread').scrollTop > {height} - 600")
    visit.page.keyboard.press("Escape")
    visit.wait_for_end()


def test_tabs_see_each_other(visit: Visit, daemon: Running) -> None:
    with in_context(visit.page.context, daemon) as other:
        visit.ask("Seen there?")
        expect(other.page.locator("#conversations .open")).to_have_text("Seen there?")
        visit.wait_for_end()


def test_all_that_can_be_used_has_a_name(visit: Visit) -> None:
    visit.ask("Name it")
    visit.wait_for_end()
    nameless = visit.page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, textarea, a, dialog")]
          .filter((each) => !each.ariaLabel && !each.textContent.trim() && !each.labels?.length && !each.hidden)
          .map((each) => each.outerHTML)"""
    )
    assert nameless == []
