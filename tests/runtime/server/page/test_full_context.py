"""What the page does once a conversation no longer fits into the context."""

import re
from pathlib import Path

import pytest
from browsing import Open, Visit, visiting
from playwright.sync_api import Browser, expect
from scripted_chat import Script, said
from serving import Running

from anespec.runtime.server.http.errors import ApiError

TOO_LONG = ApiError(400, "the prompt has 9000 tokens and the context 4096", "context_length_exceeded")


def told(script: Script, number: int = -1) -> list[str]:
    return [message["content"] for message in script.asked[number]["messages"]]


def fill(visit: Visit, script: Script) -> None:
    """Three turns, of which the third had no room for the first two messages."""
    script.answers.extend([said("One"), said("Two"), said("Three", truncated=2)])
    for number in range(3):
        visit.ask(f"Question {number}")
        visit.wait_for_end()


@pytest.mark.slow
def test_what_left_is_said_and_is_not_asked_again(visit: Visit, script: Script) -> None:
    fill(visit, script)
    assert script.asked[-1]["truncation"] == "auto"
    assert told(script) == ["Question 0", "One", "Question 1", "Two", "Question 2"]
    room = visit.page.locator(".room:visible")
    expect(room).to_have_count(1)
    expect(room.locator("p")).to_have_text(re.compile(r"^2 earlier messages no longer fit;"))
    expect(visit.page.locator(".left-out")).to_have_count(2)
    visit.ask("Question 3")
    visit.wait_for_end()
    assert told(script) == ["Question 1", "Two", "Question 2", "Three", "Question 3"]
    # More of them leave: the newer line says how many there are now, and has what can be done.
    script.answers.append(said("Five", truncated=4))
    visit.ask("Question 4")
    visit.wait_for_end()
    expect(visit.page.locator(".room:visible")).to_have_count(2)
    expect(visit.page.locator(".room:visible p").nth(1)).to_have_text(re.compile("^6 earlier messages"))
    expect(visit.page.locator(".left-out")).to_have_count(6)
    expect(visit.page.get_by_role("button", name="Summarise them")).to_have_count(1)
    visit.page.reload()
    expect(visit.page.locator(".left-out")).to_have_count(6)
    visit.ask("Question 5")
    visit.wait_for_end()
    assert told(script) == ["Question 3", "Yes.", "Question 4", "Five", "Question 5"]


@pytest.mark.slow
def test_another_model_is_asked_with_all(visit: Visit, script: Script) -> None:
    fill(visit, script)
    visit.page.locator("#model").select_option("fable-2")
    visit.ask("Question 3")
    visit.wait_for_end()
    assert told(script)[0] == "Question 0"
    expect(visit.page.locator(".left-out")).to_have_count(0)


@pytest.mark.slow
def test_a_summary_goes_with_the_next_question(visit: Visit, script: Script) -> None:
    fill(visit, script)
    script.answers.append(said("It was about **numbers**."))
    visit.page.get_by_role("button", name="Summarise them").click()
    head = visit.page.locator(".room:visible summary")
    expect(head).to_have_text("Summary of them, sent with the next question")
    visit.wait_for_end()
    assert told(script)[:2] == ["Question 0", "One"]
    assert told(script)[2].startswith("Summarise our conversation")
    assert (len(told(script)), script.asked[-1]["max_completion_tokens"]) == (3, 512)
    expect(visit.page.locator(".room:visible strong")).to_have_text("numbers")
    expect(visit.page.get_by_role("button", name="Summarise them")).to_have_count(0)
    visit.page.reload()
    for _ in range(2):
        visit.ask("Question 3")
        visit.wait_for_end()
        question = told(script)[4]
        assert question.endswith("It was about **numbers**.)\n\nQuestion 3")
        assert told(script)[:4] == ["Question 1", "Two", "Question 2", "Three"]
    assert told(script)[-1] == "Question 3"


@pytest.mark.slow
def test_what_leaves_later_is_summarised_with_the_summary_before_it(visit: Visit, script: Script) -> None:
    fill(visit, script)
    script.answers.extend([said("Sum one."), said("Four"), said("Five", truncated=5)])
    visit.page.get_by_role("button", name="Summarise them").click()
    visit.wait_for_end()
    for number in (3, 4):
        visit.ask(f"Question {number}")
        visit.wait_for_end()
    script.answers.append(said("Sum two."))
    visit.page.get_by_role("button", name="Summarise them").click()
    visit.wait_for_end()
    asked = told(script)
    assert asked[:4] == ["Question 1", "Two", "Question 2", "Three"]
    assert asked[4].endswith("Sum one.)\n\nQuestion 3") and asked[5].startswith("Summarise")


@pytest.mark.slow
def test_a_summary_that_is_stopped_or_fails_is_none(visit: Visit, script: Script) -> None:
    fill(visit, script)
    script.answers.append(said("on and ", endless=True, seconds=0.02))
    again = visit.page.get_by_role("button", name="Summarise them")
    again.click()
    expect(visit.page.locator(".room:visible .thoughts")).to_contain_text("on and on")
    visit.page.keyboard.press("Escape")
    expect(visit.page.locator(".room:visible details")).not_to_be_visible()
    script.answers.append(ApiError(500, "the model failed"))
    again.click()
    expect(visit.page.locator(".room:visible summary")).to_have_text("There is no summary")
    expect(again).to_be_visible()
    visit.ask("Question 3")
    visit.wait_for_end()
    assert told(script)[-1] == "Question 3"


@pytest.mark.slow
def test_where_nothing_fits_there_is_no_summary(open_page: Open, script: Script) -> None:
    """What the model would say then is made up, so it is neither shown nor sent."""
    visit = open_page(viewport={"width": 390, "height": 700})
    fill(visit, script)
    script.answers.append(said("word " * 400, truncated=0))
    visit.ask("Question 3")
    visit.wait_for_end()
    script.answers.append(said("An invention.", truncated=2))
    visit.page.get_by_role("button", name="Summarise them").click()
    room = visit.page.locator(".room:visible")
    expect(room.locator("summary")).to_have_text("There is no summary")
    expect(room).to_contain_text("None of these messages fits")
    expect(room).not_to_contain_text("An invention.")
    expect(room).to_be_in_viewport()
    expect(room.get_by_role("button")).to_have_text(["New conversation"])
    visit.page.reload()
    expect(room.get_by_role("button")).to_have_text(["New conversation"])
    visit.ask("Question 4")
    visit.wait_for_end()
    assert told(script)[-1] == "Question 4"


@pytest.mark.slow
def test_a_summary_is_scrolled_to_while_it_is_written(open_page: Open, script: Script) -> None:
    visit = open_page(viewport={"width": 390, "height": 700})
    script.answers.extend([said("One"), said("Two"), said("line\n\n" * 200, truncated=2)])
    for number in range(3):
        visit.ask(f"Question {number}")
        visit.wait_for_end()
    script.answers.append(said("In short.", seconds=0.1))
    visit.page.get_by_role("button", name="Summarise them").evaluate("each => each.click()")
    expect(visit.page.locator(".room:visible .thoughts")).to_be_in_viewport()
    visit.wait_for_end()
    expect(visit.page.locator(".room:visible .thoughts")).to_be_in_viewport()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ended", "words"), [("length", "longest answer"), ("context", "context is full"), ("time", "as long as")]
)
def test_why_an_answer_was_cut_off_is_told(visit: Visit, script: Script, ended: str, words: str) -> None:
    script.answers.append(said("Once upon", ended_by=ended))
    visit.ask("Tell me")
    visit.wait_for_end()
    expect(visit.page.locator(".answer .ending")).to_contain_text(words)


@pytest.mark.slow
def test_one_can_start_anew(visit: Visit, script: Script) -> None:
    fill(visit, script)
    visit.page.locator(".room").get_by_role("button", name="New conversation").click()
    expect(visit.page.locator("#welcome")).to_be_visible()
    visit.ask("Anew")
    visit.wait_for_end()
    assert told(script) == ["Anew"]
    assert visit.titles == ["Anew", "Question 0"]


@pytest.mark.slow
def test_what_left_goes_out_and_in_with_a_file(
    visit: Visit, script: Script, open_page: Open, tmp_path: Path
) -> None:
    fill(visit, script)
    script.answers.append(said("In short."))
    visit.page.get_by_role("button", name="Summarise them").click()
    visit.wait_for_end()
    with visit.page.expect_download() as found:
        visit.page.locator("#export-all").click()
    found.value.save_as(tmp_path / "out.json")
    other = open_page()
    other.page.locator("#import-file").set_input_files(tmp_path / "out.json")
    other.page.locator("#conversations .open").click()
    expect(other.page.locator(".left-out")).to_have_count(2)
    other.ask("Question 3")
    other.wait_for_end()
    assert told(script)[0] == "Question 1" and "In short." in told(script)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("size", [(390, 844), (1400, 900)], ids=["390", "1400"])
def test_the_line_fits_on_small_and_large_screens(
    open_page: Open, script: Script, size: tuple[int, int]
) -> None:
    visit = open_page(viewport={"width": size[0], "height": size[1]})
    fill(visit, script)
    script.answers.append(said("A word " * 40 + "averyverylongword" * 12))
    visit.page.get_by_role("button", name="Summarise them").click()
    visit.wait_for_end()
    too_wide = visit.page.evaluate(
        """() => [...document.querySelectorAll(".thread, .message, .room, .room *")]
          .filter((each) => getComputedStyle(each).display !== "inline")
          .filter((each) => each.scrollWidth > each.clientWidth + 1
            || each.getBoundingClientRect().right > innerWidth)
          .map((each) => each.className || each.tagName)"""
    )
    assert too_wide == []


@pytest.mark.slow
def test_a_true_context_that_holds_no_message_beside_the_summary(browser: Browser, served: Running) -> None:
    with visiting(browser, served) as visit:
        for number in range(3):
            visit.ask(f"Tell me all that you know of number {number}. " + "word " * 170)
            visit.wait_for_end()
            if visit.page.locator(".room:visible").count():
                break
        expect(visit.page.locator(".ending").last).to_contain_text("The context is full")
        visit.page.get_by_role("button", name="Summarise them").click()
        expect(visit.page.locator(".room:visible summary")).to_have_text("There is no summary")


@pytest.mark.slow
def test_a_true_conversation_never_ends_at_a_full_context(browser: Browser, served: Running) -> None:
    with visiting(browser, served) as visit:
        visit.page.locator("#show-settings").click()
        visit.page.get_by_label("Temperature").fill("0")
        visit.page.get_by_label("Longest answer").fill("30")
        visit.page.keyboard.press("Escape")
        for number in range(8):
            visit.ask(
                f"Tell me what Lily and Tom did in the park on day {number}, and why they liked it so much."
            )
            visit.wait_for_end()
            expect(visit.page.locator(".ending.wrong")).to_have_count(0)
        room = visit.page.locator(".room:visible").last
        expect(room).to_contain_text("earlier messages no longer fit")
        room.get_by_role("button", name="Summarise them").click()
        expect(room.locator("summary")).to_contain_text("sent with the next question")
        visit.wait_for_end()
        # A question that alone is too long is refused, and the next one is answered all the same.
        visit.ask("word " * 700)
        visit.wait_for_end()
        expect(visit.page.locator(".ending.wrong")).to_have_count(1)
        visit.ask("And then?")
        visit.wait_for_end()
        expect(visit.page.locator(".ending.wrong")).to_have_count(1)
        expect(visit.page.locator(".cost").last).to_contain_text("30 tokens")
