"""What the page does where the daemon refuses, waits, or asks for a key."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browsing import Open, Visit, in_context, visiting
from patience import PATIENCE
from playwright.sync_api import Browser, expect
from scripted_chat import Script, said, scripted, unsaid
from serving import Running
from waiting import until

from anespec.runtime.server.daemon import Phase
from anespec.runtime.server.http.errors import ApiError
from anespec.runtime.server.http.keys import KeyRing


@pytest.mark.slow
def test_a_full_queue_is_waited_for(visit: Visit, script: Script) -> None:
    script.answers.append(ApiError(429, "64 requests wait already", headers={"retry-after": "2"}))
    visit.ask("Is there room?")
    wait = visit.page.locator(".wait")
    expect(wait).to_contain_text("64 requests wait already. Trying again in")
    visit.wait_for_end()
    expect(visit.answer()).to_have_text("Yes.")
    assert len(script.asked) == 2


@pytest.mark.slow
def test_a_model_that_loads_is_waited_for_or_not(visit: Visit, script: Script) -> None:
    loading = ApiError(503, "the model is being loaded; try again soon", headers={"retry-after": "60"})
    script.answers.extend([loading, loading])
    visit.ask("Are you there?")
    wait = visit.page.locator(".wait")
    expect(wait).to_contain_text("The model is being loaded")
    expect(wait).to_contain_text(re.compile(r"in 5\d s\."))
    visit.page.get_by_role("button", name="Now").click()
    until(lambda: len(script.asked) == 2)
    visit.page.keyboard.press("Escape")
    expect(visit.page.locator(".answer .ending")).to_have_text("Stopped.")


@pytest.mark.slow
def test_what_is_being_refused_can_be_stopped(visit: Visit, script: Script) -> None:
    script.answers.append(unsaid())
    with visit.page.expect_response("**/chat/completions"):
        visit.ask("Are you there?")
    visit.page.keyboard.press("Escape")
    expect(visit.page.locator(".answer .ending")).to_have_text("Stopped.")


@pytest.mark.slow
def test_what_goes_wrong_is_said_and_can_be_tried_again(visit: Visit, script: Script) -> None:
    script.answers.append(ApiError(400, "the conversation has 9 tokens", "context_length_exceeded"))
    script.answers.append(
        said("Half an", error=ApiError(503, "the server is shutting down; try again when it is back"))
    )
    visit.ask("Long")
    ending = visit.page.locator(".answer .ending.wrong")
    expect(ending).to_have_text("The conversation has 9 tokens.")
    visit.page.get_by_role("button", name="Answer again").click()
    expect(ending).to_have_text("The server is shutting down; try again when it is back.")
    expect(visit.answer()).to_have_text("Half an")


@pytest.mark.slow
def test_who_waits_for_a_turn_is_told_how_many_do(visit: Visit, script: Script, open_page: Open) -> None:
    script.waiting = 2
    script.answers.append(said("", seconds=PATIENCE))
    visit.ask("Are you there?")
    expect(visit.page.locator(".wait")).to_contain_text("Others are being answered; 2 questions wait")
    expect(open_page().page.locator("#figures")).to_contain_text("waiting2")
    visit.page.keyboard.press("Escape")


@pytest.mark.slow
def test_a_page_that_comes_while_a_model_loads_says_how_far_that_is(
    browser: Browser, daemon: Running, script: Script
) -> None:
    lifecycle = daemon.daemon.lifecycle
    lifecycle._phase, lifecycle.loading = Phase.STARTING, "converting, 45%"
    try:
        with visiting(browser, daemon, viewport={"width": 390, "height": 700}) as visit:
            words = "The model is being loaded (converting, 45%). This page tries again by itself."
            expect(visit.page.locator("#notice")).to_have_text(words)
            expect(visit.page.locator("#model")).to_be_hidden()
            lifecycle.ready()
            expect(visit.page.locator("#model")).to_have_value("fable-1")
            expect(visit.page.locator("#notice")).to_be_hidden()
    finally:
        lifecycle.ready()


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Running]:
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text("ann:0123456789abcdef\n")
    with scripted(Script(), KeyRing.of_file(keys)) as found:
        yield found


@pytest.mark.slow
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
