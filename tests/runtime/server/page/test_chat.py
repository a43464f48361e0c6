"""Asking on the page: answers as they come, stopping, asking again, settings."""

import pytest
from browsing import Open, Visit
from playwright.sync_api import expect
from scripted_chat import Piece, Said, Script, said
from waiting import until


@pytest.mark.slow
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


@pytest.mark.slow
def test_escape_stops_and_what_came_is_kept(visit: Visit, script: Script) -> None:
    script.answers.append(said("on and ", endless=True, seconds=0.02))
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_reasoning_is_folded_away(visit: Visit, script: Script) -> None:
    script.answers.append(Said([Piece("Let me *see*.", reasoning=True), Piece("Seen.")]))
    visit.ask("Think")
    visit.wait_for_end()
    expect(visit.page.locator(".reasoning summary")).to_contain_text("Thought")
    expect(visit.page.locator(".thoughts")).not_to_be_visible()
    visit.page.locator(".reasoning summary").click()
    expect(visit.page.locator(".thoughts em")).to_have_text("see")
    assert visit.answer().inner_text() == "Seen."


@pytest.mark.slow
def test_answers_and_their_code_are_copied(open_page: Open, script: Script) -> None:
    visit = open_page(permissions=["clipboard-read", "clipboard-write"])
    text = "Like **this**:\n\n```py\nprint(1)\n```"
    script.answers.append(Said([Piece(text)]))
    visit.ask("How?")
    visit.wait_for_end()
    for button, copied in ((".code button", "print(1)"), (".answer .tools [aria-label=Copy]", text)):
        visit.page.locator(button).click()
        until(lambda copied=copied: visit.page.evaluate("navigator.clipboard.readText()") == copied)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
